"""Scores of whole sequences against a scorer asked label by label."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import NullScorer
from ilme.runtime.state import State
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.search.rescoring import IMPOSSIBLE, SequenceScorer, SmoothedLists, complete, finite, sequence_scores
from ilme.smoothing import smoothed
from ilme.testing import numbered_tokens


class HistoryScorer:
    """log P(· | y) depends on every label of y; counts how many sequences it was asked about."""

    def __init__(self, size: int = 6) -> None:
        self.tokens = numbered_tokens(size, "attention")
        self.device = torch.device("cpu")
        self.rows = torch.randn(97, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.rows = self.rows.log_softmax(1)
        self.asked = 0

    def start(self, n: int) -> tuple[Tensor, State]:
        state = torch.ones(n, dtype=torch.long)
        return self.rows[state], {"history": state}

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        self.asked += len(labels)
        history = (state["history"] * 31 + labels) % 97
        return self.rows[history], {"history": history}

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, 0]


def one_by_one(scorer: HistoryScorer, sequence: tuple[int, ...], finish: bool) -> float:
    row, state = scorer.start(1)
    total = 0.0
    for label in sequence:
        total += float(row[0, label])
        row, state = scorer.score(torch.tensor([label]), state)
    return total + (float(scorer.finish(row)[0]) if finish else 0.0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), max_size=5).map(tuple), max_size=12),
    st.booleans(),
    st.integers(1, 4),
)
def test_equals_label_by_label(sequences: list[tuple[int, ...]], finish: bool, rows: int) -> None:
    scorer = HistoryScorer()
    found = sequence_scores(scorer, sequences, finish=finish, rows=rows)
    expected = [one_by_one(scorer, s, finish) for s in sequences]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_each_prefix_is_scored_once_and_last_labels_not_at_all() -> None:
    scorer = HistoryScorer()
    sequence_scores(scorer, [(1, 2, 3), (1, 2, 4), (1, 2), (1, 2, 3)])
    assert scorer.asked == 2  # (1) and (1, 2)
    scorer.asked = 0
    sequence_scores(scorer, [(1, 2, 3), (1, 2, 4), (1, 2)], finish=True)
    assert scorer.asked == 4


def test_a_sequence_that_comes_again_costs_nothing() -> None:
    scorer = HistoryScorer()
    remembering = SequenceScorer(scorer, finish=True)
    first = remembering([(1, 2), (3,)])
    asked = scorer.asked
    assert remembering([(3,), (1, 2)]) == first[::-1]
    assert scorer.asked == asked


class LengthScorer(NullScorer):
    """−1 for every label and −0.5 for the end, in rows of one number."""

    def start(self, n: int) -> tuple[Tensor, State]:
        return torch.full((n, 1), -1.0), None

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_full((len(rows),), -0.5)


@pytest.mark.parametrize("finish", [False, True])
def test_a_row_of_one_number_stands_for_every_label(finish: bool) -> None:
    tokens = numbered_tokens(6, "attention")
    sequences = [(5, 4, 3), (5, 4), (), (2,)]
    assert sequence_scores(NullScorer(tokens), sequences, finish=finish).tolist() == [0, 0, 0, 0]
    assert SequenceScorer(NullScorer(tokens), finish=finish)(sequences) == [0, 0, 0, 0]
    expected = [-len(s) - 0.5 * finish for s in sequences]
    assert sequence_scores(LengthScorer(tokens), sequences, finish=finish).tolist() == expected
    with pytest.raises(BadInputError, match="token id 6"):
        sequence_scores(NullScorer(tokens), [(6,)])


def test_complete_fills_only_what_it_is_given() -> None:
    scorer = HistoryScorer()
    lists = {
        "a": [
            Hypothesis((1, 2), -1.0, Scores(-1.0, -7.0, 0.0, 2), text="x"),
            Hypothesis((), -2.0, Scores(-2.0)),
        ],
        "b": [Hypothesis((3,), -3.0, Scores(-3.0, -8.0, 0.0, 1))],
    }
    filled = complete(lists, subtracted=SequenceScorer(scorer))
    assert [h.scores.lm for h in filled["a"]] == [-7.0, 0.0]
    assert filled["a"][0].scores.subtracted == pytest.approx(one_by_one(scorer, (1, 2), False))
    assert filled["b"][0].scores.subtracted == pytest.approx(one_by_one(scorer, (3,), False))
    assert filled["a"][0].text == "x" and filled["a"][0].scores.asr == -1.0


def test_log_zero_becomes_a_finite_number_and_nan_an_error() -> None:
    nbest = [Hypothesis((1,), -1.0, Scores(-1.0, float("-inf"), -2.0, 1)), Hypothesis((2,), -1.0, Scores(-3.0))]
    bounded = finite({"u": nbest})["u"]
    assert bounded[0].scores == Scores(-1.0, IMPOSSIBLE, -2.0, 1)
    assert bounded[1] is nbest[1]
    with pytest.raises(BadInputError, match=r"'u'.*not a number"):
        finite({"u": [Hypothesis((1,), 0.0, Scores(float("nan")))]})


def test_a_foreign_id_is_named() -> None:
    with pytest.raises(BadInputError, match="token id 9 is not one of the scorer's 6"):
        sequence_scores(HistoryScorer(), [(1, 9)])


@pytest.mark.parametrize("finish", [False, True])
def test_every_share_of_the_background_comes_out_of_one_pass(finish: bool) -> None:
    shares = (0.0, 0.05, 0.5)
    scorer = HistoryScorer()
    sequences = [(1, 2), (1, 2, 3), (), (3,)]
    lists = {"a": [Hypothesis(y, 0.0, Scores(-1.0, -2.0, -99.0, len(y))) for y in sequences]}
    again = SmoothedLists(scorer, shares, finish=finish)
    found = again(lists)
    asked = scorer.asked
    for share in shares:
        expected = sequence_scores(smoothed(scorer, share), sequences, finish=finish).tolist()
        assert [h.scores.subtracted for h in found[share]["a"]] == pytest.approx(expected, abs=1e-12)
        assert all(h.scores.asr == -1.0 and h.scores.lm == -2.0 for h in found[share]["a"])
    scorer.asked = 0
    assert again(lists) == found and not scorer.asked, "what was scored is known"
    assert asked < sum(map(len, sequences)) + len(sequences)
    background = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64).log()
    other = SmoothedLists(scorer, (0.5,), background=background, finish=finish)(lists)
    expected = sequence_scores(smoothed(scorer, 0.5, background), sequences, finish=finish).tolist()
    assert [h.scores.subtracted for h in other[0.5]["a"]] == pytest.approx(expected, abs=1e-12)
