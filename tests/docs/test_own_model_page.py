"""The whole transducer of docs/guide/own-model.md runs, and prints what the page shows."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT


def test_the_transducer_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guide" / "own-model.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Mine" in block)
    exec(compile(code, "own-model.md", "exec"), {})
    printed = capsys.readouterr().out
    shown = next(line for line in page.splitlines() if "Scores(asr=" in line)
    numbers = [[float(x) for x in re.findall(r"=(-?[\d.]+)", line)] for line in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)
