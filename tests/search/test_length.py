"""How long a transcript can be: by its audio, and beside what the model itself heard."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilme.search.hypothesis import Hypothesis, Scores
from ilme.search.length import SPARE_LABELS, alike_in_length, label_limits


def hypothesis(size: int, asr: float, score: float) -> Hypothesis:
    return Hypothesis(tuple(range(size)), score, Scores(asr=asr, length=size))


def test_hypotheses_that_drop_or_invent_stretches_are_left_out():
    own, short, long, near = (
        hypothesis(*x) for x in [(20, -4.0, -1.0), (2, -3.0, -0.5), (60, -30.0, -0.6), (24, -8.0, -0.7)]
    )
    assert alike_in_length([short, long, near, own], 1.0) == [near, own]
    assert alike_in_length([], 1.0) == []


def test_the_measure_is_ranked_as_the_search_ranks():
    """Without normalisation the short one is what the model likes best; by the mean it is the long one."""
    short, long = hypothesis(5, -4.0, -4.0), hypothesis(40, -9.0, -9.0)
    assert alike_in_length([short, long], 0.0) == [short]
    assert alike_in_length([short, long], 1.0) == [long]


lists = st.lists(st.tuples(st.integers(0, 60), st.floats(-50, 0)), min_size=1, max_size=8)


@given(lists, st.sampled_from([0.0, 0.5, 1.0]))
def test_the_models_own_best_always_stays(made: list[tuple[int, float]], exponent: float):
    nbest = sorted((hypothesis(n, asr, asr / (n + 1) ** exponent) for n, asr in made), key=lambda h: -h.score)
    kept = alike_in_length(nbest, exponent)
    assert kept and kept[0] == nbest[0], "a search without LM is not changed"
    assert [h for h in nbest if h in kept] == kept, "and the order stays"


def test_limits_follow_the_audio():
    assert label_limits([0.0, 1.0, 10.04, 1000.0], 12.0, 448) == [SPARE_LABELS, 12 + SPARE_LABELS, 132, 448]
    assert label_limits([3.0], 0.0, 448) == [SPARE_LABELS]
    assert label_limits([3.0, 5.0], math.inf, 99) == [99, 99]
    assert label_limits([], 12.0, 9) == []
    assert label_limits([2.5], 40.0, 10**9) == [pytest.approx(100 + SPARE_LABELS)]
