"""The README's Python runs as it stands, and stands near the top."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_python_stands_before_line_40_and_runs(capsys):
    block = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    assert TEXT[: block.start()].count("\n") < 40
    exec(compile(block.group(1), "README.md", "exec"), {})
    assert "Scores(asr=" in capsys.readouterr().out
