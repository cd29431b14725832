"""The verdicts on the paper's claims are those of the paired tests that stand in the same results file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FILES = [
    path
    for path in sorted((ROOT / "docs" / "results" / "data").glob("study*.json"))
    if "claims" in (found := json.loads(path.read_text(encoding="utf-8"))) and "cross pairs" in found
]
FEWER = re.compile(r"(rnnt|aed), (cross|intra)-domain: ILME makes fewer errors than (\w+)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_difference_within_chance_is_no_yes_and_no_no(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    for claim in found["claims"]:
        assert claim["holds"] in ("yes", "no", "within chance", "not tested"), claim
        if match := FEWER.fullmatch(claim["name"]):
            model, setting, other = match.groups()
            pairs = {pair["pair"]: pair for pair in found[f"{setting} pairs"]}
            pair = pairs.get(f"{model} ILME against {other}")
            if pair is not None:
                sure = "yes" if pair["relative, %"] < 0 else "no"
                assert claim["holds"] == (sure if pair["p"] < 0.05 else "within chance"), claim
