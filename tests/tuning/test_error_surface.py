"""The line search against brute force: every break found, every interval's error right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning.error_surface import CandidateLists, Profile, as_vector, as_weights, build_lists, possible_winners


def random_lists(seed: int, utterances: int = 5, width: int = 6, whole: bool = False) -> CandidateLists:
    """Random lists; with `whole`, small whole numbers, so that ties and parallel lines abound."""
    g = np.random.default_rng(seed)
    shape = (utterances, width)

    def draw(*extra: int) -> np.ndarray:
        return g.integers(-3, 4, size=(*shape, *extra)).astype(float) if whole else g.normal(size=(*shape, *extra))

    zeros = np.zeros(shape, dtype=np.int64)
    return CandidateLists(
        ids=tuple(map(str, range(utterances))),
        base=draw(),
        slopes=draw(3),
        substitutions=g.integers(0, 5, size=shape),
        deletions=zeros,
        insertions=g.integers(0, 2, size=shape),
        words=np.full(utterances, 10),
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_the_profile_is_the_error_at_every_point(seed: int, whole: bool) -> None:
    lists = random_lists(seed, whole=whole)
    g = np.random.default_rng(seed + 1)
    origin, direction = g.normal(size=3), g.normal(size=3)
    if whole:
        origin, direction = np.zeros(3), np.array([1.0, 0.0, 0.0])
    profile = lists.along(origin, direction, -2.0, 2.0)
    assert profile.edges[0] == -2 and profile.edges[-1] == 2
    assert (np.diff(profile.edges) > 0).all()
    for low, high, errors in zip(profile.edges, profile.edges[1:], profile.errors, strict=False):
        if high - low < 1e-9:  # rounding decides inside so thin a slice
            continue
        for t in (low + 0.01 * (high - low), (low + high) / 2, high - 0.01 * (high - low)):
            scores = lists.base + lists.slopes @ (origin + t * direction)
            brute = 0
            for u in range(len(lists.ids)):
                best = scores[u].max()
                tied = np.flatnonzero(scores[u] >= best - 1e-9)
                if len(tied) == 1:
                    brute += lists.errors[u, tied[0]]
                else:  # parallel or equal lines: any of them may stand for the others
                    brute += lists.errors[u, lists.winners(origin + t * direction)[u]]
            if _unique(scores):
                assert errors == brute


def _unique(scores: np.ndarray) -> bool:
    top = np.sort(scores, axis=1)
    return bool((top[:, -1] - top[:, -2] > 1e-9).all())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_no_point_of_the_line_is_better_than_the_profile_says(seed: int) -> None:
    lists = random_lists(seed, utterances=8)
    origin, direction = np.array([0.2, 0.1, 0.0]), np.array([1.0, 0.5, 0.0])
    profile = lists.along(origin, direction, 0.0, 1.0)
    dense = [lists.error_at(origin + t * direction) for t in np.linspace(0, 1, 2001)]
    assert profile.errors.min() <= min(dense)
    best = int(profile.errors.argmin())
    middle = (profile.edges[best] + profile.edges[best + 1]) / 2
    assert lists.error_at(origin + middle * direction) == profile.errors.min()


def test_copies_weigh_utterances_as_if_they_were_repeated() -> None:
    lists = random_lists(3, utterances=4)
    copies = np.array([2.0, 0.0, 1.0, 3.0])
    take = np.repeat(np.arange(4), copies.astype(int))
    repeated = CandidateLists(
        tuple(map(str, take)),
        lists.base[take],
        lists.slopes[take],
        lists.substitutions[take],
        lists.deletions[take],
        lists.insertions[take],
        lists.words[take],
    )
    origin, direction = np.zeros(3), np.array([1.0, 1.0, 0.0])
    a = lists.along(origin, direction, 0.0, 2.0, copies)
    b = repeated.along(origin, direction, 0.0, 2.0)
    t = np.linspace(0.001, 1.999, 301)
    np.testing.assert_allclose(a.at(t), b.at(t))
    assert lists.error_at(origin, copies) == repeated.error_at(origin)


def test_smoothing_is_the_average_around_each_point() -> None:
    profile = Profile(np.array([0.0, 1.0, 1.1, 3.0]), np.array([10.0, 0.0, 10.0]))
    points = np.array([1.05, 0.2, 3.0])
    assert profile.at(points).tolist() == [0.0, 10.0, 10.0]
    assert profile.at(points, 0.5) == pytest.approx([9.0, 10.0, 10.0])  # a pit of width 0.1 in a window of 1


def hypothesis(text: str, asr: float, lm: float = 0.0, sub: float = 0.0) -> Hypothesis:
    return Hypothesis(tuple(range(len(text.split()))), asr, Scores(asr, lm, sub, len(text.split())), text=text)


def test_lists_count_errors_and_pad() -> None:
    lists = build_lists(
        {"a": [hypothesis("x y z", -1, -5), hypothesis("x y", -2, -3, -9)], "b": [hypothesis("q", -1, -2)]},
        {"a": "x y", "b": "Q."},
        normaliser_name="spoken",
    )
    assert lists.total_words == 3
    assert lists.errors.tolist() == [[1, 0], [0, 0]]
    assert lists.insertions.tolist() == [[1, 0], [0, 0]]
    assert lists.slopes[0, 1].tolist() == [-3, 9, 2]
    assert lists.counts(np.zeros(3)).insertions == 1
    assert lists.counts(np.array([1.0, 0, 0])).errors == 0
    divided = build_lists({"a": [hypothesis("x y z", -4, -8)]}, {"a": "x"}, length_exponent=1.0)
    assert divided.base[0, 0] == -1 and divided.slopes[0, 0].tolist() == [-2, 0, 0.75]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_only_hypotheses_that_cannot_win_are_left_out(seed: int, whole: bool) -> None:
    g = np.random.default_rng(seed)
    linear = g.integers(-3, 4, size=(30, 4)).astype(float) if whole else g.normal(size=(30, 4))
    low, high = np.array([0.0, 0.0, 0.0]), np.array([1.0, 0.5, 0.0])
    kept = possible_winners(linear, low, high)
    assert kept.any()
    for _ in range(50):
        w = low + g.random(3) * (high - low)
        scores = linear @ np.array([1.0, *w])
        assert scores[kept].max() == pytest.approx(scores.max())
    if not whole:
        assert kept.sum() < 30


def test_weights_and_vectors_are_one_thing() -> None:
    weights = FusionWeights(lm=0.3, subtracted=0.2, length=-0.5)
    assert as_weights(as_vector(weights)) == weights


def test_bad_lists_are_named() -> None:
    good = [hypothesis("x", -1)]
    with pytest.raises(BadInputError, match="no references"):
        build_lists({"a": good}, {})
    with pytest.raises(BadInputError, match="'b' has a reference but no hypothesis"):
        build_lists({"a": good}, {"a": "x", "b": "y"})
    with pytest.raises(BadInputError, match="'b' was decoded but has no reference"):
        build_lists({"a": good, "b": good}, {"a": "x"})
    with pytest.raises(BadInputError, match=r"'a'.*nan.*finite"):
        build_lists({"a": [hypothesis("x", float("nan"))]}, {"a": "x"})
    with pytest.raises(BadInputError, match="no words"):
        build_lists({"a": good}, {"a": ""})


def test_winners_are_judged_at_the_corners_of_the_box() -> None:
    """Each axis has ends of its own: the second hypothesis wins only where that axis alone is at its lower end."""
    low, high = np.array([0.1, -2.0, 0.4]), np.array([0.9, -1.0, 0.5])
    for axis in range(3):
        for end, other in ((low, high), (high, low)):
            slope = np.sign(end[axis] - other[axis])
            middle = (low[axis] + high[axis]) / 2
            line = np.zeros(4)
            line[0], line[axis + 1] = -slope * middle, slope  # above 0 on this side of the middle alone
            assert possible_winners(np.array([np.zeros(4), line]), low, high).tolist() == [True, True]
            beyond = line.copy()
            beyond[0] = -slope * (end[axis] + slope * 0.01)  # above 0 only outside the box
            assert possible_winners(np.array([np.zeros(4), beyond]), low, high).tolist() == [True, False]
