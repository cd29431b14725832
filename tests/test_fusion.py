"""The fused score is the formula, and a weight of 0 leaves its part out."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.fusion import Fusion, FusionWeights, fuse
from ilme.testing import tiny


def test_fuse_is_the_formula():
    weights = FusionWeights(lm=0.3, subtracted=0.2, length=0.5, phrases=2.0)
    assert fuse(-2.0, -3.0, -5.0, 4.0, weights, 1.5) == pytest.approx(-2 - 0.9 + 1.0 + 2.0 + 3.0)
    x = torch.randn(50)
    nothing = torch.full_like(x, torch.nan)
    assert torch.equal(fuse(x, nothing, nothing, x, FusionWeights(), nothing), x)


@pytest.mark.parametrize("name", ["lm", "subtracted", "phrases"])
def test_each_scorer_is_checked_against_the_models_vocabulary(name):
    model, other = tiny("rnnt", units=20), tiny("lm", units=21)
    same = tiny("lm", units=20)
    used = Fusion(weights=FusionWeights(**{name: 0.5}), **{name: other})
    with pytest.raises(VocabularyMismatchError, match=f"the {name} scorer 21"):
        used.scorers(model)
    chosen = Fusion(same, same, FusionWeights(**{name: 0.5}), phrases=same).scorers(model)
    assert [s is same for s in chosen] == [name == n for n in ("lm", "subtracted", "phrases")], "a weight of 0: not run"
    Fusion(other, other, phrases=other).scorers(model)  # what is not run is not checked
    with pytest.raises(BadInputError, match=f"no {name} scorer was given"):
        Fusion(weights=FusionWeights(**{name: 0.5}))


def test_weights_are_finite_and_never_negative_but_for_the_length():
    assert FusionWeights(length=-0.5).length == -0.5
    for name in ("lm", "subtracted", "phrases"):
        with pytest.raises(BadInputError, match=f"{name} must not be negative, got -0.1"):
            FusionWeights(**{name: -0.1})
    for value in (float("nan"), float("inf"), "1"):
        with pytest.raises(BadInputError, match="must be a finite number"):
            FusionWeights(length=value)
