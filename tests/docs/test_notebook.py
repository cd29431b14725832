"""The notebook runs from its first cell to its last, says what it should, and is kept with its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebooks.run import run

from tests.docs.pages import ROOT

FILE = ROOT / "notebooks" / "fusion.ipynb"


def cells() -> list[dict]:
    return [c for c in json.loads(FILE.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def test_it_is_kept_with_its_outputs() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, len(cells()) + 1))
    kinds = [output["output_type"] for cell in cells() for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in cells()) and "display_data" in kinds


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(FILE.read_text(encoding="utf-8"))
    names = run(notebook)
    fluent, shuffled = (names["log_probability"](names["internal"], text) for text in ("he was a man", "man a was he"))
    assert fluent > shuffled  # the internal LM is a language model
    assert names["wer"].shape == (21, 21)
    plain = names["measure"](names["references"], {i: n[0].text for i, n in names["plain"].items()}).rate
    assert names["result"].dev.rate <= plain  # the first decode of the tuner has no fusion
    assert "WER in the search" in "".join(notebook["cells"][-2]["outputs"][0]["text"])
