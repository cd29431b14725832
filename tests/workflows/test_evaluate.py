"""What an evaluation is called; what it measures is tested with the command (tests/commands/test_evaluate.py)."""

from __future__ import annotations

import pytest

import ilme
from ilme.adapters.whisper_timestamps import Stamped
from ilme.fusion import FusionWeights
from ilme.lm.case_folding import Folds, fold_internal
from ilme.testing import tiny
from ilme.workflows.evaluate import method_of


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (FusionWeights(), "BS"),
        (FusionWeights(length=0.5), "BS"),
        (FusionWeights(lm=0.3), "SF"),
        (FusionWeights(lm=0.3, subtracted=0.2), "ILME"),
        (FusionWeights(subtracted=0.2), "ILME"),
    ],
)
def test_a_method_is_named_by_its_weights(weights: FusionWeights, name: str) -> None:
    assert method_of(weights, ilme.internal_lm(tiny("rnnt"))) == name


def test_what_is_subtracted_is_seen_through_its_wrappers() -> None:
    model, lm, weights = tiny("aed"), tiny("lm"), FusionWeights(lm=0.3, subtracted=0.2)
    internal = ilme.internal_lm(model)
    assert method_of(weights, Stamped(internal, 5)) == "ILME"
    assert method_of(weights, fold_internal(internal, Folds(model.tokens, model.device))) == "ILME"
    assert method_of(weights, lm) == "DR"
    assert method_of(weights, Stamped(lm, 5)) == "DR"
