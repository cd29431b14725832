"""The README's Python runs as it stands, and stands near the top."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_python_stands_before_line_40_and_runs(capsys):
    text = README.read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert text[: block.start()].count("\n") < 40
    exec(compile(block.group(1), "README.md", "exec"), {})
    assert "Scores(asr=" in capsys.readouterr().out


def test_every_command_in_the_readme_exists():
    from ilme.cli import COMMANDS

    for line in re.findall(r"^ilme (.*)$", README.read_text(encoding="utf-8"), re.MULTILINE):
        words = line.split()
        assert words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS, line
