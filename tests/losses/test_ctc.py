"""A flat start: the loss against its definition, frame by frame, and what it moves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.losses.ctc import flat_start_loss
from ilme.train.options import AedOptions, RnntOptions


def by_hand(layer: nn.Linear, h: Tensor, labels: list[int], widths: Tensor, late: bool) -> float:
    """One utterance, as the docstring says it: labels among themselves, and blank against all of them."""
    T, U = len(h), len(labels)
    whole = sum(float(widths[y]) for y in labels)
    total = 0.0
    for t in range(T):
        place = (t + 0.5) / T
        if late:
            place = max(0.0, (place - 1 / (U + 1)) / (1 - 1 / (U + 1)))
        u, end = 0, float(widths[labels[0]]) / whole
        while end <= place and u < U - 1:
            u += 1
            end += float(widths[labels[u]]) / whole
        logs = layer(h[t]).detach().log_softmax(-1)
        rest = torch.log1p(-logs[0].exp())
        total -= float(U / T * (logs[labels[u]] - rest) + (1 - U / T) * logs[0] + U / T * rest)
    return total


@pytest.mark.parametrize("late", [False, True])
def test_it_is_its_definition(late: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 9)
    h = torch.randn(3, 14, 5)
    widths = torch.tensor([1.0, 3.0, 1.0, 5.0, 2.0, 1.0, 4.0, 1.0, 2.0])
    rows, lengths = [[3, 1, 6, 2], [4], [8, 8, 5]], [14, 9, 11]
    labels = torch.zeros(3, 4, dtype=torch.long)
    for i, row in enumerate(rows):
        labels[i, : len(row)] = torch.tensor(row)
    found = flat_start_loss(
        layer, h, torch.tensor(lengths), labels, torch.tensor([len(r) for r in rows]), 0, widths, late
    )
    expected = sum(by_hand(layer, h[i, :n], row, widths, late) for i, (row, n) in enumerate(zip(rows, lengths)))  # noqa: B905
    assert math.isclose(found.item(), expected, rel_tol=1e-5)


def test_utterances_without_labels_or_frames_are_no_trouble() -> None:
    layer, widths = nn.Linear(5, 9), torch.ones(9)
    h = torch.randn(2, 6, 5, requires_grad=True)
    empty = torch.zeros(2, 0, dtype=torch.long)
    nothing = flat_start_loss(layer, h, torch.tensor([6, 4]), empty, torch.tensor([0, 0]), 0, widths)
    assert nothing.item() == 0.0
    labels = torch.tensor([[3, 4], [0, 0]])
    loss = flat_start_loss(layer, h, torch.tensor([6, 0]), labels, torch.tensor([2, 0]), 0, widths)
    loss.backward()
    assert math.isfinite(loss.item()) and h.grad is not None and torch.isfinite(h.grad).all() and not h.grad[1].any()


def test_blanks_do_not_move_the_encoder() -> None:
    torch.manual_seed(0)
    layer, h = nn.Linear(5, 9), torch.randn(1, 8, 5, requires_grad=True)
    labels, sizes = torch.tensor([[3, 4]]), (torch.tensor([8]), torch.tensor([2]))
    grads = []
    for bias in (0.0, 4.0):
        with torch.no_grad():
            layer.bias[0] = bias
        loss = flat_start_loss(layer, h, *sizes[:1], labels, sizes[1], 0, torch.ones(9))
        grads.append(torch.autograd.grad(loss, [h, layer.bias]))
    assert torch.equal(grads[0][0], grads[1][0]) and grads[0][1][0] < 0 < grads[1][1][0]


def test_it_needs_ctc_to_come_after_it() -> None:
    for options in (RnntOptions, AedOptions):
        with pytest.raises(BadInputError, match="flat comes before CTC"):
            options(flat=5)
        with pytest.raises(BadInputError, match="flat="):
            options(flat=-1, ctc=0.5)
