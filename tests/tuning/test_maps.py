"""The heat map and the balance of errors, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from ilme.fusion import FusionWeights
from ilme.tuning.maps import balance_along_lm, heat_map
from ilme.tuning.weight_search import WeightSpace
from tests.tuning.test_weight_search import forty_words


def test_the_heat_map_is_the_wer_at_every_pair_of_weights() -> None:
    """40 words: three errors below λ_T = 0.3 and one above, whatever μ is."""
    found = heat_map(forty_words(), WeightSpace((0.0, 1.0), (0.2, 0.4)), beta=0.1, points=3)
    assert found.lm == (0.0, 0.5, 1.0) and found.subtracted == pytest.approx((0.2, 0.3, 0.4))
    assert found.wer == ((7.5, 2.5, 2.5),) * 3
    fixed = heat_map(forty_words(), WeightSpace((0.0, 1.0), (0.2, 0.2)), beta=0.0, points=5)
    assert fixed.lm == (0.0, 0.25, 0.5, 0.75, 1.0) and fixed.subtracted == (0.2,)
    assert fixed.wer == ((7.5, 7.5, 2.5, 2.5, 2.5),)
    assert len(heat_map(forty_words(), WeightSpace(), beta=0.0).lm) == 21


def test_the_balance_follows_the_chosen_ratio() -> None:
    """Two substitutions are mended on the way; the deletion stays."""
    found = balance_along_lm(forty_words(), WeightSpace(), FusionWeights(lm=0.4, subtracted=0.1), points=3)
    assert found.lm == (0.0, 0.5, 1.0) and found.subtracted == (0.0, 0.125, 0.25)
    assert found.substitutions == (5.0, 0.0, 0.0)
    assert found.deletions == (2.5, 2.5, 2.5) and found.insertions == (0.0, 0.0, 0.0)
    alone = balance_along_lm(forty_words(), WeightSpace(), FusionWeights(), points=2)
    assert alone.subtracted == (0.0, 0.0)
    assert len(balance_along_lm(forty_words(), WeightSpace(), FusionWeights()).lm) == 41
