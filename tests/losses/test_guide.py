"""The guide of an attention decoder: CTC's places against all there are, its loss, and what it teaches."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.losses.guide import NEAR, ctc_places, guide_loss
from ilme.train.objectives import AedObjective
from ilme.train.options import AedOptions

from .test_aed import small_batch

ROWS, LENGTHS = [[3, 1, 6, 2], [4], [8, 8, 5]], [14, 9, 11]


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Frames, labels and label lengths of three utterances."""
    labels = torch.zeros(3, 4, dtype=torch.long)
    for i, row in enumerate(ROWS):
        labels[i, : len(row)] = torch.tensor(row)
    return torch.tensor(LENGTHS), labels, torch.tensor([len(row) for row in ROWS])


def energies() -> Tensor:
    """Of an attention to these utterances (B, U+1, T): −inf where there is no frame."""
    z = torch.randn(3, 5, 14, dtype=torch.float64)
    for i, T in enumerate(LENGTHS):
        z[i, :, T:] = -torch.inf
    return z


def test_ctc_places_are_the_best_of_all_there_are() -> None:
    """Over every choice of one frame for each label, in order; padding of either kind changes nothing."""
    torch.manual_seed(3)
    scores = torch.randn(3, 14, 9).log_softmax(-1)
    lengths, labels, counts = batch()
    places = ctc_places(scores, lengths, labels, counts, blank=0)
    for i, (row, T) in enumerate(zip(ROWS, LENGTHS, strict=True)):
        odds = scores[i] - scores[i, :, :1]

        def worth(frames: tuple[int, ...], odds: Tensor = odds, row: list[int] = row) -> float:
            return sum(float(odds[t, y]) for t, y in zip(frames, row, strict=True))

        best = max(itertools.combinations(range(T), len(row)), key=worth)
        assert places[i, : len(row)].tolist() == list(best)


def by_hand(attention: Tensor, places: list[int]) -> float:
    """One utterance, (U + 1, T), as the docstring says it."""
    T, total = attention.shape[1], 0.0
    for u, place in enumerate([*places, T - 1]):
        bell = [math.exp(-0.5 * ((t - place) / NEAR) ** 2) for t in range(T)]
        total -= sum(g / sum(bell) * math.log(float(attention[u, t])) for t, g in enumerate(bell))
    return total


def test_the_loss_is_its_definition() -> None:
    torch.manual_seed(0)
    lengths, labels, counts = batch()
    places = ctc_places(torch.randn(3, 14, 9), lengths, labels, counts, blank=0)
    attention = energies().softmax(-1)
    found = guide_loss(attention, places, lengths, counts)
    wanted = [
        by_hand(attention[i, : len(row) + 1, :T], places[i, : len(row)].tolist())
        for i, (row, T) in enumerate(zip(ROWS, LENGTHS, strict=True))
    ]
    assert float(found) == pytest.approx(sum(wanted))


def test_its_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(1)
    lengths, labels, counts = batch()
    places = ctc_places(torch.randn(3, 14, 9), lengths, labels, counts, blank=0)
    whole = energies()
    inside = torch.isfinite(whole)

    def loss(values: Tensor) -> Tensor:
        full = torch.full_like(whole, -torch.inf).masked_scatter(inside, values)
        return guide_loss(full.softmax(-1), places, lengths, counts)

    assert torch.autograd.gradcheck(loss, (whole[inside].requires_grad_(),))


@pytest.mark.parametrize("lengths, counts, width", [([3, 0], [0, 0], 0), ([3, 0], [2, 0], 2), ([2, 1], [3, 2], 3)])
def test_without_labels_or_with_more_of_them_than_frames(lengths: list[int], counts: list[int], width: int) -> None:
    labels, label_lengths = torch.ones(2, width, dtype=torch.long), torch.tensor(counts)
    places = ctc_places(torch.randn(2, 3, 4), torch.tensor(lengths), labels, label_lengths, blank=0)
    attention = torch.full((2, width + 1, 3), 1 / 3, requires_grad=True)
    loss = guide_loss(attention, places, torch.tensor(lengths), label_lengths)
    loss.backward()
    assert torch.isfinite(loss) and attention.grad is not None and torch.isfinite(attention.grad).all()


def test_it_fades_and_is_no_part_of_the_evaluation() -> None:
    model, features, sizes, labels, counts = small_batch(ctc=True)
    losses = {}
    for guide in (0, 10):
        objective = AedObjective(model, AedOptions(smoothing=0.0, ctc=0.5, listen=3, guide=guide))
        objective.start = lambda: None  # type: ignore[method-assign]  # the same weights for both
        for step in (4, 8, 13):
            objective.at_step(step)
            losses[guide, step] = objective.train()(features, sizes, labels, counts).item()
        losses[guide, "eval"] = objective.eval()(features, sizes, labels, counts).item()
    first, half = (losses[10, step] - losses[0, step] for step in (4, 8))
    assert first > 0 and half == pytest.approx(first * 0.5 / 0.9, rel=1e-4)
    assert losses[10, 13] == pytest.approx(losses[0, 13]) and losses[10, "eval"] == losses[0, "eval"]


def test_it_brings_the_attention_to_the_labels() -> None:
    """A decoder that learns from the guide alone looks at every label, in order."""
    model, features, sizes, labels, counts = small_batch(ctc=True)
    objective = AedObjective(model, AedOptions(ctc=0.5, listen=1, guide=10))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    places, losses = torch.tensor([[1, 3, 4], [0, 2, 0]]), []
    for _ in range(80):
        _, frames, attention, _ = objective.body()(features, sizes, labels)
        loss = guide_loss(attention, places, frames, counts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
    assert attention[0].argmax(-1).tolist() == [1, 3, 4, 6] and attention[1, :3].argmax(-1).tolist() == [0, 2, 3]


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"aed\.guide=-1"):
        AedOptions(guide=-1)
    with pytest.raises(BadInputError, match=r"aed\.listen"):
        AedOptions(ctc=0.5, guide=10)
