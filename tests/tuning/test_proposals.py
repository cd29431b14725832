"""Where the tuner decodes next: the region it trusts, the ray of its first step, the lists it believes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.tuning import proposals as module
from ilme.tuning.error_surface import build_lists, stack_lists
from ilme.tuning.proposals import (
    APART,
    MERGED,
    Proposer,
    TriedPoint,
    beyond,
    nearness,
    overreached,
    region,
    rising_to,
    room,
    within,
)
from ilme.tuning.weight_search import Optimum, WeightObjective, WeightSpace, search_weights
from tests.tuning.synthetic_lists import TRUTH, SyntheticDecoder
from tests.tuning.test_error_surface import random_lists

LISTS = random_lists(0)


def tried(lm: float, subtracted: float, cost: float) -> TriedPoint:
    return TriedPoint(np.array([lm, subtracted, 0.0]), cost, LISTS)


def place(found: Optimum | None) -> np.ndarray:
    assert found is not None
    return found.vector


def proposer(space: WeightSpace | None = None, decodes: int = 5, smoothing: float = 0.01) -> Proposer:
    objective = WeightObjective(smoothing=smoothing)
    return Proposer(space or WeightSpace(), objective, step=0.4, decodes=decodes, restarts=4, seed=0)


def test_the_region_follows_the_best_and_narrows_when_a_decode_does_not_help() -> None:
    steps = [tried(0.0, 0.0, 100)]
    assert region(steps, 0.4)[1] == 0.4
    steps.append(tried(0.4, 0.2, 80))  # better, on the edge: as wide as before
    centre, radius = region(steps, 0.4)
    assert centre.tolist() == [0.4, 0.2, 0.0] and radius == 0.4
    steps.append(tried(0.7, 0.2, 85))  # worse
    centre, radius = region(steps, 0.4)
    assert centre.tolist() == [0.4, 0.2, 0.0] and radius == 0.2
    steps.append(tried(0.45, 0.25, 79))  # better, but well inside
    centre, radius = region(steps, 0.4)
    assert centre.tolist() == [0.45, 0.25, 0.0] and radius == pytest.approx(0.1)


def test_the_region_grows_again_after_a_step_to_its_edge_that_helped() -> None:
    steps = [tried(0.0, 0.0, 100), tried(0.4, 0.0, 103), tried(0.1, 0.0, 95)]
    assert region(steps, 0.4)[1] == pytest.approx(0.1)
    steps.append(tried(0.2, 0.0, 90))
    assert region(steps, 0.4)[1] == pytest.approx(0.2)
    steps.append(tried(0.4, 0.1, 88))
    assert region(steps, 0.4)[1] == pytest.approx(0.4)
    steps.append(tried(0.8, 0.1, 80))
    assert region(steps, 0.4)[1] == pytest.approx(0.4)  # never wider than at first


def test_a_decode_overreached_if_it_is_far_worse_than_the_best_before_it() -> None:
    steps = [tried(0.0, 0.0, 1000), tried(0.4, 0.0, 800), tried(0.5, 0.0, 879), tried(0.6, 0.0, 881)]
    assert overreached(steps) == [False, False, False, True]  # 10 % more than 800
    few = [tried(0.0, 0.0, 16), tried(0.4, 0.0, 20), tried(0.2, 0.0, 21), tried(0.1, 0.0, 0), tried(0.1, 0.1, 1)]
    assert overreached(few) == [False, False, True, False, False]  # √16 more may be chance


def test_no_further_than_half_way_to_a_decode_that_overreached() -> None:
    steps = [tried(0.0, 0.0, 100), tried(0.4, 0.0, 300), tried(0.2, 0.0, 90)]
    centre, radius = region(steps, 0.4)
    assert centre[0] == 0.2 and radius == pytest.approx(0.1)  # on the edge and better, but 0.4 is near
    assert room(centre, [np.array([0.21, 0.0, 0.0])], 0.4) == 2 * APART  # a point must fit in


def test_unforeseen_errors_rise_from_the_best_point_to_where_they_were_measured() -> None:
    centre = np.array([0.1, 0.0, 0.0])
    surcharge = rising_to({(0.5, 0.0, 0.0): 80.0}, centre)
    points = np.array([[0.0, 0, 0], [0.1, 0, 0], [0.3, 0, 0], [0.4, 0, 0], [0.5, 0, 0], [0.5, 0.4, 0]])
    assert surcharge(points) == pytest.approx([0, 0, 80 / 2**3, 80 * 0.75**3, 80, 0])
    assert rising_to({}, centre)(points).tolist() == [0] * 6
    assert rising_to({(0.5, 0.0, 0.0): -5.0}, centre)(points).tolist() == [0] * 6  # fewer than foreseen: no reward


def test_what_a_failed_decode_kept_does_not_move_the_proposals() -> None:
    """The lists of a decode that overreached may hold anything: only its count of errors is used."""
    other = random_lists(7)
    ways = [
        place(proposer().propose(LISTS, [tried(0.0, 0.0, 60), TriedPoint(np.array([0.4, 0.2, 0.0]), 200.0, lists)]))
        for lists in (LISTS, other)
    ]
    assert ways[0].tolist() == ways[1].tolist() and ways[0].max() <= 0.2 + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), st.floats(0.05, 1.0))
def test_the_first_step_keeps_the_ratio_of_the_weights(found: list[float], step: float) -> None:
    first = np.zeros(3)
    near = within(WeightSpace(), first, step)
    inside = np.clip(np.array([*found, 0.0]), near.low, near.high)
    point = beyond(inside, first, near)
    assert point[0] * inside[1] == pytest.approx(point[1] * inside[0], abs=1e-9)
    assert (point <= near.high + 1e-9).all() and (point >= inside - 1e-9).all() and (point <= 2 * inside + 1e-9).all()
    if inside.max() > 1e-9:
        on_the_edge = point.max() == pytest.approx(step)
        assert on_the_edge or point.tolist() == pytest.approx((2 * inside).tolist())


def test_nearer_decodes_count_more_and_all_of_them_as_much_as_the_merged_lists_leave() -> None:
    steps = [tried(0.0, 0.0, 9), tried(0.4, 0.3, 5), tried(0.5, 0.3, 4)]
    weights = nearness(steps, steps[-1].vector)
    assert weights[2] > weights[1] > weights[0] > 0
    assert weights.sum() == pytest.approx(1 - MERGED)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 6), st.integers(2, 6), st.floats(0.0, 1.0))
def test_stacked_lists_err_as_their_parts_do(seed: int, wide: int, narrow: int, share: float) -> None:
    parts = [random_lists(seed, width=wide), random_lists(seed + 1, width=narrow)]
    stacked, copies = stack_lists(parts, [share, 1 - share])
    vector = np.random.default_rng(seed).random(3)
    expected = share * parts[0].error_at(vector) + (1 - share) * parts[1].error_at(vector)
    assert stacked.error_at(vector, copies) == pytest.approx(expected)
    assert float((stacked.words * copies).sum()) == pytest.approx(parts[0].total_words)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 0.3))
def test_the_search_keeps_away_from_what_it_is_told_to_avoid(seed: int, apart: float) -> None:
    lists, space = random_lists(seed), WeightSpace()
    free = search_weights(lists, space, restarts=2)
    other = search_weights(lists, space, restarts=2, avoid=[free.vector], apart=apart)
    assert np.abs(other.vector - free.vector).max() >= apart
    assert other.objective == lists.error_at(other.vector)
    if np.abs(free.vector).max() >= apart:  # it may begin, and so end, at no weights at all
        assert other.objective <= lists.error_at(np.zeros(3))


def test_nothing_is_proposed_where_nothing_is_left() -> None:
    point = TriedPoint(np.array([0.3, 0.0, 0.0]), 5.0, LISTS)
    fixed = WeightSpace(lm=(0.3, 0.3), subtracted=(0.0, 0.0))
    assert proposer(fixed).propose(LISTS, [point]) is None
    tiny = WeightSpace(lm=(0.3, 0.3 + APART / 2), subtracted=(0.0, 0.0))
    assert proposer(tiny).propose(LISTS, [point]) is None
    unconfirmed = TriedPoint(point.vector, 5.0, LISTS, confirmed=False)
    again = place(proposer(fixed).propose(LISTS, [unconfirmed]))
    assert again.tolist() == [0.3, 0.0, 0.0], "decoded with another beam: the tuned one must confirm it"


@pytest.mark.slow
def test_a_known_optimum_is_approached_and_never_decoded_twice() -> None:
    decoder = SyntheticDecoder(utterances=200, noise=2.0)
    steps: list[TriedPoint] = []
    vector, truth = np.zeros(3), np.array([TRUTH.lm, TRUTH.subtracted, 0.0])
    everything = build_lists(decoder.everything, decoder.references)
    for _ in range(5):
        steps.append(TriedPoint(vector, everything.error_at(vector), everything))
        found = place(proposer().propose(everything, steps))
        assert found is not None
        vector = found
        assert min(np.abs(vector - t.vector).max() for t in steps) >= APART - 1e-4
    assert min(np.abs(t.vector - truth).max() for t in steps) < 0.12


def test_steps_in_beta_are_three_times_as_long() -> None:
    near = within(WeightSpace(lm=(0.0, 2.0), length=(0.0, 4.0)), np.array([0.5, 0.5, 2.0]), 0.1)
    assert near.lm == pytest.approx((0.4, 0.6)) and near.subtracted == pytest.approx((0.4, 0.6))
    assert near.length == pytest.approx((1.7, 2.3))


@pytest.mark.parametrize(
    ("found", "low", "high", "expected"),
    [
        (0.6, 0.0, 1.0, 0.7),  # twice as far
        (0.6, 0.0, 0.65, 0.65),  # as far as there is room above
        (0.4, 0.0, 1.0, 0.3),  # the same downwards
        (0.4, 0.35, 1.0, 0.35),
        (0.5, 0.0, 1.0, 0.5),  # nowhere
    ],
)
def test_beyond_is_twice_as_far_or_as_far_as_there_is_room(
    found: float, low: float, high: float, expected: float
) -> None:
    near = WeightSpace(lm=(low, high), subtracted=(0.0, 1.0))
    vector = beyond(np.array([found, 0.2, 0.0]), np.array([0.5, 0.2, 0.0]), near)
    assert vector == pytest.approx([expected, 0.2, 0.0])


def test_the_seed_and_the_restarts_of_the_search_are_the_proposers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def noted(*arguments: object, **options: object) -> Optimum:
        given.append(options)
        return search_weights(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "search_weights", noted)
    Proposer(WeightSpace(), WeightObjective(), step=0.4, decodes=5, restarts=3, seed=17).propose(
        LISTS, [tried(0.0, 0.0, 60)]
    )
    assert given and all((options["seed"], options["restarts"]) == (17, 3) for options in given)
