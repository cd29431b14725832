"""The record of looks at a test set: what is a look, and what a ledger must hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError
from ilme.evaluation.ledger import looks_at, record_look
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from tests.evaluation.test_results import example

RESULTS = example()


def looked(**changed: Any) -> Results:
    """One of six words is wrong for each utterance: 16.6667 %, to four decimals."""
    texts = {i: " ".join(["-", *r.text.split()[1:]]) for i, r in RESULTS.references.items()}
    return replace(
        RESULTS,
        systems=(System("rnnt", "SF", **{"weights": FusionWeights(0.3), "beam": 4, "hypotheses": texts} | changed),),
    )


def test_another_model_other_weights_and_another_beam_are_looks(tmp_path: Path) -> None:
    ledger = tmp_path / "looks.json"
    assert record_look(ledger, looked(weights=FusionWeights())) == 0, "nothing was tuned"
    assert record_look(ledger, looked()) == record_look(ledger, looked()) == 1, "the same decode again"
    assert record_look(ledger, looked(beam=5)) == 2
    assert record_look(ledger, looked(weights=FusionWeights(0.3, 0.1))) == 3
    first, *_ = looks_at(ledger, RESULTS)
    words = [len(r.text.split()) for r in RESULTS.references.values()]
    assert first["wer"] == round(100 * len(words) / sum(words), 4)
    assert (first["model"], first["method"], first["beam"], first["weights"]["lm"]) == ("rnnt", "SF", 4, 0.3)
    other = replace(RESULTS, references=dict(list(RESULTS.references.items())[1:]))
    assert looks_at(ledger, other) == [], "another test set"


@pytest.mark.parametrize("field", ["model", "method", "weights", "beam", ""])
def test_a_look_must_say_what_was_decoded(tmp_path: Path, field: str) -> None:
    ledger = tmp_path / "looks.json"
    record_look(ledger, looked())
    data = json.loads(ledger.read_text())
    ((entry),) = data["sets"].values()
    (look,) = entry["looks"]
    entry["looks"] = [{k: v for k, v in look.items() if k in ("model", "method", "weights", "beam") and k != field}]
    ledger.write_text(json.dumps(data))
    if field:
        with pytest.raises(BadInputError, match="damaged"):
            looks_at(ledger, RESULTS)
    else:
        assert len(looks_at(ledger, RESULTS)) == 1, "no more than that is needed"


@pytest.mark.parametrize("sets", [None, [], {"x": None}, {"x": {}}, {"x": {"looks": {}}}, {"x": {"looks": [1]}}])
def test_a_damaged_ledger_is_named(tmp_path: Path, sets: Any) -> None:
    ledger = tmp_path / "looks.json"
    ledger.write_text(json.dumps({"format": "ilme-ledger", "version": 1, "sets": sets}))
    with pytest.raises(BadInputError, match=r"looks\.json is damaged"):
        looks_at(ledger, RESULTS)
