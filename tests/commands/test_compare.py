"""`ilme compare` and `ilme report` on two small results files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ilme.cli import main
from ilme.data.utterances import Reference
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights

TEXTS = ["the whale swam", "the sea was calm", "a whale of a time", "the captain saw the sea"]


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Results of two systems on one test set: one hears wail for whale."""
    references = {f"u{k}": Reference(text, f"s{k % 3}", 1.0) for k, text in enumerate(TEXTS)}
    files = []
    for method, word in (("BS", "wail"), ("ILME", "whale")):
        hypotheses = {f"u{k}": text.replace("whale", word) for k, text in enumerate(TEXTS)}
        weights = FusionWeights() if method == "BS" else FusionWeights(lm=0.3, subtracted=0.2)
        system = System(model="rnnt", method=method, weights=weights, hypotheses=hypotheses)
        Results("sea", "none", references, (system,)).save(tmp_path / f"{method}.json")
        files.append(str(tmp_path / f"{method}.json"))
    return files


def test_compare_puts_systems_side_by_side(
    parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    together = tmp_path / "all.json"
    assert main(["compare", *parts, "--out", str(together), "--style", "markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| rnnt") >= 2 and "fixed 2: whale (2)" in printed
    assert [s.method for s in Results.load(together).systems] == ["BS", "ILME"]
    source = tmp_path / "source.txt"
    source.write_text("the sea\n" * 20)
    assert main(["compare", *parts, "--source", str(source), "--target", str(source)]) == 0
    assert "never in the source" in capsys.readouterr().out
    assert main(["compare", *parts, "--style", "json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert [row["Method"] for row in tables["Word error rate (%)"]] == ["BS", "ILME"]
    assert [row["Against"] for row in tables["Paired comparisons"]] == ["rnnt BS"]


def test_compare_says_what_it_cannot_compare(parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", parts[0], parts[0]]) == 1
    assert "two systems are called" in capsys.readouterr().err
    assert main(["compare", *parts, "--style", "word"]) == 2
    assert "'word' is not one of terminal, markdown, latex, csv, json" in capsys.readouterr().err


def test_report_is_one_page(parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *parts, "--out", str(out), "--title", "Tiny", "--audio", "0"]) == 0
    assert "report.html (" in capsys.readouterr().out
    assert "<title>Tiny</title>" in out.read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
