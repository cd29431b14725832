"""How long a transcript may be, at the very edges."""

from __future__ import annotations

import math

import pytest

from ilme.search.hypothesis import Hypothesis, Scores
from ilme.search.length import alike_in_length, label_limits


def hypothesis(length: int, asr: float, score: float = 0.0) -> Hypothesis:
    return Hypothesis(tuple(range(length)), score, Scores(asr, 0.0, 0.0, float(length)))


def test_limits_are_the_seconds_times_the_rate_and_twelve_to_spare():
    assert label_limits([0.0, 1.0, 1.99, 100.0], 3.0, 200) == [12, 15, 17, 200]
    assert label_limits([0.0, 100.0], math.inf, 50) == [50, 50]
    assert label_limits([4.0], 0.0, 200) == [12]


@pytest.mark.parametrize(
    ("own", "shortest", "longest"),
    [(20, 4, 48), (50, 22, 108), (0, 0, 8), (10, 0, 28)],  # 0.6 · own − 8 and 2 · own + 8
)
def test_what_stays_has_six_tenths_to_twice_the_labels_give_or_take_eight(own, shortest, longest):
    liked = hypothesis(own, asr=-1.0)
    lengths = [shortest - 1, shortest, own + 1, longest, longest + 1]
    others = [hypothesis(n, asr=-100.0, score=5.0) for n in lengths if n >= 0]
    kept = alike_in_length([*others, liked], 0.0)
    assert [len(h.tokens) for h in kept] == [shortest, own + 1, longest, own]


def test_the_measure_is_what_the_model_likes_best_as_the_search_ranks():
    """Sums favour the short one, means the long one: −2/1 and −8/5 for no label and four with α = 1."""
    short, long, far = hypothesis(0, asr=-2.0), hypothesis(4, asr=-8.0), hypothesis(12, asr=-90.0)
    assert alike_in_length([short, long, far], 0.0) == [short, long], "0 labels allow 8"
    assert alike_in_length([short, long, far], 1.0) == [short, long, far], "4 labels allow 16"
    assert alike_in_length([], 1.0) == []
