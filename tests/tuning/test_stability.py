"""How far weights move on other dev sets, in numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.fusion import FusionWeights
from ilme.tuning.stability import stability
from ilme.tuning.weight_search import WeightObjective, WeightSpace
from tests.tuning.test_weight_search import forty_words


def test_stability_of_two_speakers_drawn_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speaker x has all errors. Drawn alone: 2 of 40 words stay wrong, and 1 of 40 on all of dev; y alone has none.

    Then no weights are needed, which costs 3 errors on all of dev. Optimism: the mean of 0, 0, 1/40 − 2/40, 3/40 − 0.
    """
    draws = iter([[0, 1], [1, 0], [0, 0], [1, 1]])
    real = np.random.default_rng

    class Rigged:
        def __init__(self, seed: int) -> None:
            self.normal, self.random = real(seed).normal, real(seed).random

        def integers(self, high: int, size: int) -> np.ndarray:
            assert (high, size) == (2, 2)
            return np.array(next(draws))

    monkeypatch.setattr(np.random, "default_rng", Rigged)
    found = stability(
        forty_words(),
        WeightSpace(lm=(0.0, 1.0), subtracted=(0.0, 0.0)),
        np.zeros(3),
        objective=WeightObjective(),
        speakers={"a": "x", "b": "x", "c": "y", "d": "y"},
        replicates=4,
    )
    assert (found.replicates, found.groups) == (4, 2)
    assert found.optimism == pytest.approx(100 * (0 + 0 - 1 / 40 + 3 / 40) / 4)
    chosen = found.mean.lm * 4 / 3  # three of the four find it
    assert 0.3 <= chosen <= 0.306
    assert found.deviation.lm == pytest.approx(np.std([chosen, chosen, chosen, 0], ddof=1))
    assert found.low.lm == pytest.approx(0.075 * chosen) and found.high.lm == pytest.approx(chosen)
    assert found.mean.subtracted == found.high.subtracted == found.mean.length == 0


def test_an_utterance_without_a_speaker_is_one_of_its_own() -> None:
    """One replicate has no deviation."""
    found = stability(forty_words(), WeightSpace(), np.zeros(3), objective=WeightObjective(), replicates=1)
    assert (found.replicates, found.groups, found.deviation) == (1, 4, FusionWeights())
