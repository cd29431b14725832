"""κ is chosen by errors on dev, and never where the other words lose more than 1 %."""

from __future__ import annotations

import pytest

from ilme.evaluation.metrics import ErrorCounts
from ilme.fusion import FusionWeights
from ilme.lm.phrase_list import Phrase
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning.boost import LADDER, BoostStep, choose_boost, tune_boost


def step(boost, listed, others, words=100, all_words=1000):
    return BoostStep(boost, ErrorCounts(words - listed, listed, 0, 0), ErrorCounts(all_words - others, others, 0, 0))


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([(0, 40, 200), (1, 30, 200), (2, 20, 201), (3, 10, 203)], 2),  # 203 is more than 1 % above 200
        ([(0, 40, 200), (1, 40, 190), (2, 30, 202)], 1),  # fewest errors in all
        ([(0, 40, 200), (1, 40, 200)], 0),  # nothing gained: none
        ([(0, 40, 10), (1, 20, 11), (2, 10, 12)], 1),  # one error more is chance, two are not
        ([(0, 40, 200), (1, 20, 210), (2, 10, 220)], 0),
    ],
)
def test_fewest_errors_that_cost_the_others_nothing(steps, chosen):
    assert choose_boost([step(*s) for s in steps], safe=2.0).boost == chosen


@pytest.mark.parametrize(
    ("others", "chosen"), [((200, 190, 200, 190), 2), ((200, 200, 210, 200), 1), ((9, 12, 12, 9), 0)]
)
def test_where_dev_says_little_the_safe_boost_stays(others, chosen):
    steps = [step(k, 0, o, words=3) for k, o in enumerate(others)]
    assert choose_boost(steps, safe=2.0).boost == chosen


def test_every_boost_of_the_ladder_is_decoded():
    asked = []

    def decode(weights):
        asked.append(weights)
        text = "jon marley" if weights.phrases < 1 else "bob marley"
        return {f"u{i}": [Hypothesis((1,), 0.0, Scores(0.0), text=text)] for i in range(30)}

    references = {f"u{i}": "bob marley" for i in range(30)}
    best, steps = tune_boost(decode, references, [Phrase("Bob")], FusionWeights(lm=0.3), 1.0, "spoken")
    assert [w.phrases for w in asked] == [0.0, *LADDER] == [s.boost for s in steps]
    assert all(w.lm == 0.3 for w in asked)
    assert best.boost == 1.0 and best.errors == 0 and steps[0].listed.errors == 30
    assert best.measured is not None and best.measured.total.errors == 0
