"""The fit of confidences: against a fit by brute force, what it reports, and dev sets that teach nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ilme.recogniser.confidence import WordConfidence
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning.confidence import RIDGE, calibrate, ece, fit, nce, which_are_right


def drawn(count, true, seed=0):
    """Evidence, and words that are right with the probability that `true` gives them."""
    draw = np.random.default_rng(seed)
    known = np.stack([draw.normal(1.5, 2.0, count), draw.uniform(-1.5, 0.0, count)], 1)
    return known, (draw.random(count) < true(known)).astype(float)


def test_the_fit_is_that_of_brute_force():
    known, right = drawn(300, WordConfidence(0.5, 0.4, 1.0))
    found = fit(known, right)

    def cost(a, b, c):
        p = WordConfidence(a, b, c)(known)
        ridge = RIDGE / 2 * (a**2 + (b - 1) ** 2 + c**2)
        return -np.where(right > 0, np.log(p), np.log(1 - p)).sum() + ridge

    here = cost(found.offset, found.share, found.heard)
    for step in itertools.product((-0.02, 0.0, 0.02), repeat=3):
        assert here <= cost(found.offset + step[0], found.share + step[1], found.heard + step[2]) + 1e-9


def test_much_evidence_finds_the_truth_and_none_leaves_the_share():
    truth = WordConfidence(0.5, 0.4, 1.0)
    found = fit(*drawn(50_000, truth))
    assert (found.offset, found.share, found.heard) == pytest.approx((0.5, 0.4, 1.0), abs=0.1)
    assert fit(np.zeros((0, 2)), np.zeros(0)) == WordConfidence()


def test_the_measures_by_hand():
    right = np.array([1.0, 1.0, 0.0, 1.0])
    assert nce(np.full(4, 0.75), right) == pytest.approx(0.0)
    assert nce(right, right) == pytest.approx(1.0, abs=1e-4)
    assert nce(np.full(4, 0.5), right) == pytest.approx(1 - math.log(2) / 0.5623351446188083)
    assert nce(np.full(4, 0.5), np.ones(4)) == 0.0
    assert ece(np.full(4, 0.75), right) == pytest.approx(0.0)
    assert ece(np.array([1.0, 0.95]), np.array([0.0, 1.0])) == pytest.approx(0.95 / 2)  # in one bin
    assert ece(np.array([0.95, 0.95, 0.45, 1.0]), right) == pytest.approx((0.05 * 2 + 0.45 + 0.0) / 4)


def test_which_words_are_right_is_asked_word_by_word():
    assert which_are_right("the whale swam", "The wail, swam", "spoken").tolist() == [1, 0, 1]
    assert which_are_right("twenty one whales", "21 whales -- yes", "spoken")[[0, 1, 3]].tolist() == [1, 1, 0]
    assert np.isnan(which_are_right("a b", "a -- b", "spoken")[1])
    assert which_are_right("a", "--", "spoken").shape == (1,)


def speech(count, seed):
    """Two hypotheses an utterance: the list is far too sure of its first."""
    draw = np.random.default_rng(seed)
    lists, references = {}, {}
    for number in range(count):
        said = " ".join(draw.choice(["sea", "whale", "wind", "calm"], 6))
        heard = [w if draw.random() < 0.7 else "wrong" for w in said.split()]
        other = [
            w if h == "wrong" or draw.random() < 0.8 else "wrong" for w, h in zip(said.split(), heard, strict=True)
        ]
        nbest = [(" ".join(heard), -1.0), (" ".join(other), -3.0)]
        lists[str(number)] = [Hypothesis((1,) * 6, s, Scores(s), text=t) for t, s in nbest]
        references[str(number)] = said
    return lists, references


def test_a_dev_set_makes_words_that_it_has_not_seen_fit_better():
    found = calibrate(*speech(120, 1), "none")
    assert found.confidence is not None and found.after is not None and found.words == 720
    assert found.after["NCE"] > found.before["NCE"] + 0.1 and found.after["ECE"] < found.before["ECE"]


def test_of_few_words_nothing_is_learned():
    found = calibrate(*speech(8, 1), "none")
    assert found.confidence is None and found.after is None and found.words == 48
    lists, references = speech(3, 1)
    empty = calibrate({i: [Hypothesis((), 0.0, Scores(0.0))] for i in lists}, references, "none")
    assert (empty.words, empty.before, empty.confidence) == (0, {}, None)
