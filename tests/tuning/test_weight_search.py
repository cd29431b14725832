"""The search for weights on fixed lists: its space, its penalty and its ties, in numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning.error_surface import CandidateLists, build_lists
from ilme.tuning.weight_search import SPREAD, Optimum, Prior, WeightObjective, WeightSpace, search_weights

FREE = WeightSpace(lm=(0.0, 1.0), subtracted=(0.1, 0.9), length=(-0.5, 1.5))


def point(lm: float, subtracted: float, length: float) -> WeightSpace:
    return WeightSpace((lm, lm), (subtracted, subtracted), (length, length))


def forty_words(*, wins: float = 0.3) -> CandidateLists:
    """Four utterances of ten words. In one, two errors are mended from λ_T = `wins` on; in another, one error stays."""
    right = " ".join(["w"] * 10)
    wrong = " ".join(["x", "x"] + ["w"] * 8)
    lists = {i: [Hypothesis((1,), 0.0, Scores(-1.0, -10.0, -8.0, 10.0), text=right)] for i in "abcd"}
    lists["a"] = [
        Hypothesis((2,), 0.0, Scores(-1.0, -20.0, 0.0, 10.0), text=wrong),
        Hypothesis((1,), 0.0, Scores(-1.0 - 10 * wins, -10.0, 0.0, 10.0), text=right),
    ]
    lists["b"] = [Hypothesis((3,), 0.0, Scores(-1.0, -10.0, -8.0, 9.0), text=right[2:])]
    return build_lists(lists, dict.fromkeys(lists, right))


def test_each_method_has_the_weights_that_it_uses_and_all_have_beta() -> None:
    assert FREE.restricted("BS") == WeightSpace((0.0, 0.0), (0.0, 0.0), (-0.5, 1.5))
    assert FREE.restricted("SF") == WeightSpace((0.0, 1.0), (0.0, 0.0), (-0.5, 1.5))
    assert FREE.restricted("DR") == FREE.restricted("ILME") == FREE
    with pytest.raises(BadInputError, match="no method 'XX'; choose one of BS, SF"):
        FREE.restricted("XX")  # type: ignore[arg-type]
    assert FREE.smallest.tolist() == [0.0, 0.1, 0.0]
    assert (FREE.low.tolist(), FREE.high.tolist()) == ([0.0, 0.1, -0.5], [1.0, 0.9, 1.5])


def test_bad_spaces_and_objectives_are_named() -> None:
    for bad in ({"lm": (0.5, 0.4)}, {"length": (0.0, float("inf"))}, {"subtracted": (float("nan"), 1.0)}):
        with pytest.raises(BadInputError, match=f"range of {next(iter(bad))} must be"):
            WeightSpace(**bad)
    for name in ("lm", "subtracted"):
        with pytest.raises(BadInputError, match=f"range of {name} starts at -0.1"):
            WeightSpace(**{name: (-0.1, 1.0)})
    assert WeightSpace(length=(-1.0, -1.0)).smallest.tolist() == [0.0, 0.0, -1.0]
    for name in ("penalty", "smoothing"):
        for value in (-0.1, float("inf"), float("nan")):
            with pytest.raises(BadInputError, match=name):
                WeightObjective(**{name: value})


def test_the_penalty_is_points_of_wer_for_each_unit_of_weight() -> None:
    """40 words: 2 points of WER are 0.8 errors; weights 0.5, 0.25 and −0.5 cost 1.25 times that. One error is left."""
    found = search_weights(forty_words(), point(0.5, 0.25, -0.5), objective=WeightObjective(penalty=2.0))
    assert found.objective == pytest.approx(1 + 2.0 * 40 / 100 * 1.25)
    assert found.vector.tolist() == [0.5, 0.25, -0.5]
    twice = np.array([2.0, 0.0, 1.0, 1.0])  # b, with its error, is left out; the others have 40 words again
    assert search_weights(
        forty_words(), point(0.5, 0.25, -0.5), objective=WeightObjective(penalty=2.0), copies=twice
    ).objective == pytest.approx(0 + 2.0 * 40 / 100 * 1.25)
    assert search_weights(
        forty_words(), point(0.5, 0.0, 0.0), objective=WeightObjective(penalty=2.0), copies=2 * twice
    ).objective == pytest.approx(0 + 2.0 * 80 / 100 * 0.5)


@pytest.mark.parametrize(("penalty", "expected"), [(0.0, 0.3), (16.0, 0.3), (17.5, 0.0)])
def test_errors_are_mended_while_they_are_worth_their_weight(penalty: float, expected: float) -> None:
    """Two errors are mended at λ_T = 0.3, which costs 0.3 · 0.4 errors for each point of the penalty: up to 16.7."""
    space = WeightSpace(lm=(0.0, 1.0), subtracted=(0.0, 0.0))
    found = search_weights(forty_words(), space, objective=WeightObjective(penalty=penalty))
    assert found.vector == pytest.approx([expected, 0, 0], abs=0.0051)
    assert found.vector[0] >= expected, "just inside, where the errors are mended"
    assert found.objective == pytest.approx((1 if expected else 3) + penalty * 0.4 * found.vector[0])


def test_smoothing_keeps_away_from_the_edge_of_a_step() -> None:
    """Errors change at λ_T = 0.3: averaged over ± 0.1, they are fewest from 0.4 on."""
    space = WeightSpace(lm=(0.0, 1.0), subtracted=(0.0, 0.0))
    found = search_weights(forty_words(), space, objective=WeightObjective(smoothing=0.1))
    assert found.objective == pytest.approx(1) and found.vector[0] >= 0.4
    narrow = WeightSpace(lm=(0.25, 0.35), subtracted=(0.0, 0.0))
    found = search_weights(forty_words(), narrow, objective=WeightObjective(smoothing=0.1))
    assert found.objective == pytest.approx(2), "half of the window has three errors and half of it one"


def test_points_are_kept_apart_from_those_to_avoid() -> None:
    space = WeightSpace(lm=(0.0, 1.0), subtracted=(0.0, 0.0))
    near = [np.array([0.3, 0.0, 0.0])]
    found = search_weights(forty_words(), space, avoid=near, apart=0.2)
    assert found.objective == 1 and found.vector[0] == pytest.approx(0.5, abs=0.001)
    nowhere = search_weights(forty_words(), space, avoid=near, apart=2.0)
    assert nowhere.objective == np.inf


def test_a_surcharge_counts_as_errors_do() -> None:
    space = WeightSpace(lm=(0.0, 1.0), subtracted=(0.0, 0.0))
    found = search_weights(forty_words(), space, surcharge=lambda points: 1.5 * (points[:, 0] > 0.2))
    assert found.objective == 2.5, "1 error and 1.5 unforeseen ones: still fewer than 3"
    found = search_weights(forty_words(), space, surcharge=lambda points: 2.5 * (points[:, 0] > 0.2))
    assert found.objective == 3 and found.vector.tolist() == [0, 0, 0]


def test_equal_errors_are_decided_by_smaller_weights() -> None:
    small, large = Optimum(np.array([0.1, 0.0, -0.1]), 2.0), Optimum(np.array([0.0, 0.3, 0.0]), 2.0000001)
    assert small.key == (2.0, pytest.approx(0.2)) and small.key < large.key
    assert Optimum(np.array([1.0, 1.0, 1.0]), 1.9).key < small.key


def test_what_is_expected_decides_where_dev_says_nothing() -> None:
    """Beyond λ_T = 0.3 all weights make one error: the nearest to what is expected wins, at its exact place."""
    expected = Prior(lm=0.45, subtracted=0.2, errors=2.0)
    found = search_weights(forty_words(), WeightSpace(), objective=WeightObjective(prior=expected))
    assert found.vector.tolist() == pytest.approx([0.45, 0.2, 0.0]) and found.objective == pytest.approx(1.0)


@pytest.mark.parametrize(("errors", "lm"), [(0.5, 0.305), (10.0, 0.2), (1e-6, 0.305)])
def test_dev_leads_away_from_what_is_expected_as_far_as_its_errors_are_worth(errors: float, lm: float) -> None:
    """Two errors are mended 0.1 away from what is expected, which costs 0.16 times the prior's errors."""
    expected = Prior(lm=0.2, errors=errors * 2 / 0.16 / 1.2)
    found = search_weights(forty_words(), WeightSpace(), objective=WeightObjective(prior=expected))
    assert found.vector[0] == pytest.approx(lm if errors < 1.2 else 0.2, abs=0.01)


def test_the_prior_is_a_number_of_errors_at_a_usual_step() -> None:
    expected = Prior(lm=0.25, subtracted=0.125, length=0.3, errors=2.0)
    for k in range(3):
        away = expected.centre + SPREAD * np.eye(3)[k]
        assert expected.cost(away[None]).tolist() == pytest.approx([2.0])
    assert WeightObjective(2.0, prior=expected).beside(np.zeros((1, 3)), 50).tolist() == pytest.approx([2 * 1.41])
    assert WeightObjective(2.0, prior=expected).beside(expected.centre[None], 50).tolist() == pytest.approx([0.675])
    assert Prior().cost(np.ones((2, 3))).tolist() == [0, 0]
    with pytest.raises(BadInputError, match="prior"):
        Prior(errors=-1.0)
