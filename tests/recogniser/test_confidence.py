"""How sure a word is: the list's share, and what dev has taught."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.recogniser.confidence import WordConfidence, confidences, evidence
from ilme.search.hypothesis import Hypothesis, Scores


def hypothesis(text: str, score: float, asr: float = 0.0) -> Hypothesis:
    return Hypothesis((1, 2, 3), score, Scores(asr), text=text)


def test_it_is_the_share_of_the_list_where_dev_has_taught_nothing() -> None:
    nbest = [hypothesis("the whale swam", -1.0), hypothesis("a whale swam", -2.0), hypothesis("the whale", -3.0)]
    p = np.exp([-1.0, -2.0, -3.0]) / np.exp([-1.0, -2.0, -3.0]).sum()
    assert confidences(nbest) == pytest.approx([p[0] + p[2], 0.998, p[0] + p[1]])
    assert confidences([hypothesis("one", -9.0)]) == pytest.approx([0.998])
    assert confidences([hypothesis("", -9.0)]) == []


def test_a_score_per_label_is_that_of_the_whole_again() -> None:
    nbest = [hypothesis("sea", -0.5), hypothesis("see", -0.75)]
    assert confidences(nbest, exponent=1.0) == pytest.approx([1 / (1 + math.exp(-4 * 0.25))])


def test_what_is_fitted_weighs_the_list_and_what_was_heard() -> None:
    nbest = [hypothesis("sea", -1.0, asr=-2.0), hypothesis("see", -1.0)]
    assert evidence(nbest).tolist() == [[pytest.approx(0.0), pytest.approx(-0.5)]]
    assert confidences(nbest, fitted=WordConfidence(1.0, 0.5, 2.0)) == pytest.approx([0.5])
    assert confidences(nbest, fitted=WordConfidence(3.0, 0.5, 2.0)) == pytest.approx([1 / (1 + math.exp(-2.0))])
    with pytest.raises(BadInputError, match=r"confidence\.share"):
        WordConfidence(share=math.nan)
