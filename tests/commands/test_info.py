"""`ilme info`: the paper's networks have the paper's sizes."""

from __future__ import annotations

import json

import pytest

from ilme.cli import main


@pytest.mark.parametrize(("model", "millions"), [("rnnt", 76.36), ("aed", 97.03), ("lm", 57.66)])
def test_info_gives_the_papers_counts(model: str, millions: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", model, "--preset", "paper", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"model", "preset", "parameters", "components"}
    assert round(data["parameters"] / 1e6, 2) == millions
    assert sum(data["components"].values()) <= data["parameters"]


def test_info_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "rnnt", "preset=tiny", "vocabulary=50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rnnt (tiny, 50 output units)" and lines[-1].split()[0] == "total"
