"""The summary in the README says what the studies' results files say."""

from __future__ import annotations

import json

from experiments.summary import summary

from tests.docs.pages import ROOT

FILE = "docs/results/data/summary.json"


def test_the_summary_is_that_of_the_results() -> None:
    kept = json.loads((ROOT / FILE).read_text(encoding="utf-8"))
    assert summary() == kept, f"run: python -m experiments.summary {FILE} docs/results/images"
    for row in kept:
        assert row["test WER"]["BS"] > 0 and "ILME" in row["test WER"]
