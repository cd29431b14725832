"""The repetition guard against a look at the whole sequence."""

from __future__ import annotations

import random

import pytest
import torch

from ilme.errors import BadInputError
from ilme.search.repetition import UNKNOWN, RepetitionGuard
from tests.beam_oracle import repeats

UNITS = 3


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("span", [1, 2, 4])
@pytest.mark.parametrize("passed_over", [(), (2,), (0, 2)])
def test_exactly_one_repetition_too_many_is_forbidden(most, span, passed_over):
    """Two hypotheses of two utterances, each its own random walk over what is allowed."""
    draw = random.Random(f"{most} {span} {passed_over}")
    guard = RepetitionGuard(most, span, UNITS, passed_over)
    memory = guard.start(2, 2)
    assert memory.shape == (2, 2, guard.width) and guard.width == 2 * span
    walks = [[(), ()], [(), ()]]
    for _ in range(30):
        scores = torch.zeros(2, 2, UNITS)
        guard.forbid(scores, memory)
        labels = torch.zeros(2, 2, dtype=torch.long)
        for b in range(2):
            for k in range(2):
                walk = walks[b][k]
                forbidden = [repeats((*walk, v), most, span, passed_over) for v in range(UNITS)]
                assert (scores[b, k] == -torch.inf).tolist() == forbidden, walk
                labels[b, k] = draw.choice([v for v in range(UNITS) if not forbidden[v]] or [0])
                walks[b][k] = (*walk, int(labels[b, k]))
        memory = guard.advance(memory, labels)


def test_scores_that_are_allowed_stay_as_they_are():
    guard = RepetitionGuard(1, 2, 4)
    memory = guard.advance(guard.start(1, 1), torch.tensor([[2]]))
    scores = torch.tensor([[[0.5, -1.0, 3.0, 2.0]]])
    guard.forbid(scores, memory)
    assert scores.tolist() == [[[0.5, -1.0, -torch.inf, 2.0]]]
    assert guard.start(1, 1)[0, 0].tolist() == [UNKNOWN, UNKNOWN, 0, 0]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_labels_that_do_not_exist_are_named(wrong):
    assert RepetitionGuard(1, 2, 4, [0, 3]).counted.tolist() == [False, True, True, False]
    with pytest.raises(BadInputError, match=f"cannot pass over id {wrong}: there are 4 labels"):
        RepetitionGuard(1, 2, 4, [wrong])
