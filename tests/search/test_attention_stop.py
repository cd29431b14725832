"""With length normalisation an early, short hypothesis does not end the search for a longer, better one."""

from __future__ import annotations

import math

import pytest
import torch

from ilme.errors import BadInputError
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.testing import numbered_tokens


class Drawn:
    """Label 2 follows itself 60 times at −0.3 nats each, then the end; after one label the end costs 3 nats."""

    def __init__(self) -> None:
        self.tokens, self.device = numbered_tokens(4, "attention"), torch.device("cpu")

    def encode(self, features, lengths):
        return torch.zeros(len(lengths), 1)

    def start(self, memory):
        return self._rows(torch.zeros(len(memory))), torch.zeros(len(memory))

    def step(self, labels, state, memory):
        return self._rows(state + 1), state + 1

    @staticmethod
    def _rows(length):
        rows = torch.full((len(length), 4), -50.0)
        rows[:, 2] = torch.where(length < 60, -0.3, -50.0)
        rows[:, 0] = torch.where(length == 1, -3.0, torch.where(length == 60, 0.0, -50.0))
        return rows


def test_the_long_hypothesis_is_found():
    model = Drawn()
    options = AttentionOptions(beam=2, max_length=100, length_normalisation=1.0, stop_margin=10.0)
    best = AttentionSearch(model, None, options)(model.encode(None, torch.tensor([1])))[0][0]
    assert len(best.tokens) == 60
    assert math.isclose(best.score, -0.3 * 60 / 61, rel_tol=1e-5)


def test_without_normalisation_sums_are_compared():
    model = Drawn()
    options = AttentionOptions(beam=2, max_length=100, length_normalisation=0.0, stop_margin=10.0)
    best = AttentionSearch(model, None, options)(model.encode(None, torch.tensor([1])))[0][0]
    assert len(best.tokens) == 1


def test_a_certain_end_is_the_only_continuation():
    """After one label the end is 2 nats above the rest: a search that may go on does, one with the guard ends."""

    class Certain(Drawn):
        @staticmethod
        def _rows(length):
            rows = Drawn._rows(length)
            rows[length == 1, 0], rows[length == 1, 2] = -0.15, -2.15
            return rows

    model = Certain()
    found = {}
    for margin in (math.inf, 2.5, 1.5):
        options = AttentionOptions(beam=2, max_length=100, length_normalisation=1.0, certain_end=margin)
        found[margin] = AttentionSearch(model, None, options)(model.encode(None, torch.tensor([1])))[0]
    assert any(len(h.tokens) == 60 for h in found[math.inf])
    assert found[2.5] == found[math.inf]
    assert {len(h.tokens) for h in found[1.5]} == {1}


def test_a_search_stops_after_so_many_ended_hypotheses():
    model = Drawn()
    options = AttentionOptions(beam=2, max_length=100, length_normalisation=1.0, stop_after=1)
    best = AttentionSearch(model, None, options)(model.encode(None, torch.tensor([1])))[0][0]
    assert len(best.tokens) == 1
    with pytest.raises(BadInputError, match="stop_after=3"):
        AttentionOptions(beam=2, stop_after=3)
