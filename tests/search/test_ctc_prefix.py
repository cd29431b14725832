"""Prefix probabilities of CTC against brute force over alignments."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ilme.runtime.state import select
from ilme.search.ctc_prefix import CTCPrefixes
from tests import oracle

BLANK, UNITS = 1, 4


def frames(seed, batch=1, length=5):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(batch, length, UNITS, generator=generator)).double().log_softmax(-1)


def prefix(rows, sequence):
    """Σ over alignments whose labels begin with the sequence, and over those that say it and no more."""
    begins, says = 0.0, 0.0
    for alignment in itertools.product(range(UNITS), repeat=len(rows)):
        p = math.exp(sum(float(row[v]) for row, v in zip(rows, alignment, strict=True)))
        labels = oracle.collapsed(alignment, BLANK)
        begins += p * (labels[: len(sequence)] == sequence)
        says += p * (labels == sequence)
    return begins, says


@pytest.mark.parametrize("sequence", [(), (0,), (2, 2), (0, 3, 0), (3, 3, 3)])
def test_every_row_is_a_ratio_of_sums_over_alignments(sequence):
    rows = frames(3)
    scorer = CTCPrefixes(rows, torch.tensor([5]), BLANK)
    found, state = scorer.start()
    for label in sequence:
        found, state = scorer.step(torch.tensor([label]), state)
    before, ends = prefix(rows[0], sequence)
    assert found[0, BLANK].item() == pytest.approx(math.log(ends / before), abs=1e-9)
    for v in (0, 2, 3):
        expected = prefix(rows[0], (*sequence, v))[0]
        if expected:
            assert found[0, v].item() == pytest.approx(math.log(expected / before), abs=1e-6)
        else:
            assert found[0, v] < -1e3
    assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_utterances_of_a_batch_are_apart_and_states_can_be_reordered():
    rows, lengths = frames(4, batch=2), torch.tensor([5, 3])
    scorer = CTCPrefixes(rows, lengths, BLANK)
    _, state = scorer.start()
    state = select(state, torch.tensor([0, 0, 1, 1]))
    _, state = scorer.step(torch.tensor([0, 2, 3, 0]), state)
    together, _ = scorer.step(torch.tensor([2, 2, 0, 0]), state)
    swapped, _ = scorer.step(torch.tensor([2, 2, 0, 0]), select(state, torch.tensor([1, 0, 3, 2])))
    for row, (b, y) in enumerate([(0, (0, 2)), (0, (2, 2)), (1, (3, 0)), (1, (0, 0))]):
        alone = CTCPrefixes(rows[b : b + 1, : lengths[b]], lengths[b : b + 1], BLANK)
        _, own = alone.start()
        for label in y:
            found, own = alone.step(torch.tensor([label]), own)
        torch.testing.assert_close(together[row], found[0], rtol=0, atol=1e-9)
    alone = CTCPrefixes(rows[:1], lengths[:1], BLANK)
    _, own = alone.start()
    for label in (2, 2):
        found, own = alone.step(torch.tensor([label]), own)
    torch.testing.assert_close(swapped[0], found[0], rtol=0, atol=1e-9)


def test_the_end_of_a_long_sequence_is_ctcs_own_loss():
    rows = (3 * torch.randn(1, 120, UNITS, generator=torch.Generator().manual_seed(5))).double().log_softmax(-1)
    labels = [0, 2, 3, 3, 0, 2] * 5
    scorer = CTCPrefixes(rows, torch.tensor([120]), BLANK)
    found, state = scorer.start()
    total = 0.0
    for label in labels:
        total += found[0, label].item()
        found, state = scorer.step(torch.tensor([label]), state)
    total += found[0, BLANK].item()
    loss = torch.nn.functional.ctc_loss(
        rows.transpose(0, 1), torch.tensor([labels]), torch.tensor([120]), torch.tensor([30]), BLANK, "sum"
    )
    assert total == pytest.approx(-loss.item(), rel=1e-9)
