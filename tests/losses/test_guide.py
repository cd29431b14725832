"""The guide of an attention decoder: its loss against its definition, and what it teaches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.losses.guide import NEAR, guide_loss
from ilme.train.objectives import AedObjective
from ilme.train.options import AedOptions

from .test_aed import small_batch

WIDTHS = torch.tensor([1.0, 3.0, 1.0, 5.0, 2.0, 1.0, 4.0, 1.0, 2.0])


def by_hand(attention: Tensor, labels: list[int]) -> float:
    """One utterance, (U + 1, T), as the docstring says it."""
    T, whole, spoken, total = attention.shape[1], sum(float(WIDTHS[y]) for y in labels), 0.0, 0.0
    for u, label in enumerate([*labels, None]):
        width = 0.0 if label is None else float(WIDTHS[label])
        place = 1.0 if label is None else (spoken + width / 2) / whole
        spoken += width
        near = sum(
            float(attention[u, t]) * math.exp(-0.5 * (((t + 0.5) / T - place) / (NEAR + 1 / T)) ** 2) for t in range(T)
        )
        total -= math.log(near)
    return total


def batch() -> tuple[list[list[int]], list[int], Tensor, Tensor, Tensor]:
    rows, lengths = [[3, 1, 6, 2], [4], [8, 8, 5]], [14, 9, 11]
    labels = torch.zeros(3, 4, dtype=torch.long)
    for i, row in enumerate(rows):
        labels[i, : len(row)] = torch.tensor(row)
    energies = torch.randn(3, 5, 14, dtype=torch.float64)
    for i, T in enumerate(lengths):
        energies[i, :, T:] = -torch.inf
    return rows, lengths, labels, torch.tensor([len(row) for row in rows]), energies


def test_it_is_its_definition() -> None:
    torch.manual_seed(0)
    rows, lengths, labels, counts, energies = batch()
    attention = energies.softmax(-1)
    found = guide_loss(attention, torch.tensor(lengths), labels, counts, WIDTHS)
    pairs = enumerate(zip(rows, lengths, strict=True))
    assert float(found) == pytest.approx(sum(by_hand(attention[i, : len(y) + 1, :T], y) for i, (y, T) in pairs))


def test_its_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(1)
    _, lengths, labels, counts, energies = batch()
    inside = torch.isfinite(energies)
    free = energies[inside].requires_grad_()

    def loss(values: Tensor) -> Tensor:
        full = torch.full_like(energies, -torch.inf).masked_scatter(inside, values)
        return guide_loss(full.softmax(-1), torch.tensor(lengths), labels, counts, WIDTHS)

    assert torch.autograd.gradcheck(loss, (free,))


def test_utterances_without_labels_or_frames_are_no_trouble() -> None:
    attention = torch.full((2, 1, 3), 1 / 3, requires_grad=True)
    none = torch.zeros(2, 0, dtype=torch.long)
    assert guide_loss(attention, torch.tensor([3, 0]), none, torch.tensor([0, 0]), WIDTHS) == 0
    attention = torch.full((2, 3, 3), 1 / 3, requires_grad=True)
    loss = guide_loss(attention, torch.tensor([3, 0]), torch.tensor([[3, 4], [0, 0]]), torch.tensor([2, 0]), WIDTHS)
    loss.backward()
    assert torch.isfinite(loss) and attention.grad is not None and torch.isfinite(attention.grad).all()


def test_it_fades_and_is_no_part_of_the_evaluation() -> None:
    model, features, sizes, labels, counts = small_batch()
    losses = {}
    for guide in (0, 10):
        objective = AedObjective(model, AedOptions(smoothing=0.0, guide=guide))
        for step in (1, 5, 10):
            objective.at_step(step)
            losses[guide, step] = objective.train()(features, sizes, labels, counts).item()
        losses[guide, "eval"] = objective.eval()(features, sizes, labels, counts).item()
    first, half = (losses[10, step] - losses[0, step] for step in (1, 5))
    assert first > 0 and half == pytest.approx(first * 0.5 / 0.9, rel=1e-4)
    assert losses[10, 10] == pytest.approx(losses[0, 10]) and losses[10, "eval"] == losses[0, "eval"]


def test_it_brings_the_attention_to_the_labels() -> None:
    """A decoder that learns from the guide alone looks near every label, in order."""
    model, features, sizes, labels, counts = small_batch()
    objective = AedObjective(model, AedOptions(guide=10**6))
    widths = objective.auxiliary.widths_on(labels.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    body, losses = objective.body(), []
    for _ in range(60):
        _, frames, attention, _ = body(features, sizes, labels)
        loss = guide_loss(attention, frames, labels, counts, widths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    looked = (attention[0, :4] * torch.arange(7)).sum(-1)
    assert (looked.diff() > 0).all()


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"aed\.guide=-1"):
        AedOptions(guide=-1)
