"""Learns what takes the place of the cross-attention: a vector, or a tiny network, per layer.

    minimise  − Σ_y Σ_u log softmax(W h_u(y; v))_{y_u}     over v; every weight of the model is frozen

on transcripts y (the model's own are enough). It starts from the mean context, keeps a tenth of the
transcripts aside, and returns the vectors that predicted those best, so it cannot end worse than it began.
After Zeineldeen et al. (2021, arXiv 2104.05544) and Liu et al. (2022, arXiv 2201.11627).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ilme.adapters.hf import TransformerAED
from ilme.errors import BadInputError
from ilme.ilm.calibration import Calibration
from ilme.ilm.transformer import LearnedContext, TransformerInternalLM, mean_context

__all__ = ["LearnedContextOptions", "learn", "learn_context", "loss_per_label"]

Learned = TypeVar("Learned", bound=nn.Module)


@dataclass(frozen=True)
class LearnedContextOptions:
    """How long and how the context is learned.

    Attributes:
        epochs: Passes over the transcripts.
        batch: Transcripts in a step.
        rate: Adam's learning rate.
        rank: Units of the tiny network per layer; 0 learns vectors alone.
        seed: Seed of the order and of the network's start.
    """

    epochs: int = 8
    batch: int = 8
    rate: float = 0.02
    rank: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or self.rank < 0 or not self.rate > 0:
            raise BadInputError(f"epochs, batch and rate must be positive, rank not negative; got {self}")


def learn_context(
    model: TransformerAED,
    calibration: Calibration,
    transcripts: Sequence[Sequence[int]] | None = None,
    options: LearnedContextOptions | None = None,
) -> TransformerInternalLM:
    """Learns the context.

    Args:
        model: The model; its weights do not change.
        calibration: Speech for the mean context, where the learning starts.
        transcripts: What to learn from; the calibration's own transcripts if not given.
        options: How.
    """
    options = options or LearnedContextOptions()

    def begin() -> LearnedContext:
        return LearnedContext(mean_context(model, calibration).tensors["vectors"].clone(), options.rank)

    context = learn(model, begin, calibration.labels if transcripts is None else transcripts, options)
    tensors = {key: value.detach().clone() for key, value in context.state_dict().items()}
    if not options.rank:
        tensors = {"vectors": tensors["vectors"]}
    return TransformerInternalLM(model, context, "learned", tensors)


def learn(
    model: Any, begin: Callable[[], Learned], transcripts: Sequence[Sequence[int]], options: LearnedContextOptions
) -> Learned:
    """What `begin` makes, trained to predict transcripts in a model that does not change.

    Args:
        model: A model whose `teacher_forced` takes labels and such a context.
        begin: Makes the context to start from.
        transcripts: What to learn from; a tenth is kept aside.
        options: How.
    """
    sequences = [list(y) for y in transcripts if len(y)]
    if len(sequences) < 2:
        raise BadInputError(f"a learned internal LM needs at least two transcripts, got {len(sequences)}")
    order = random.Random(options.seed)
    order.shuffle(sequences)
    aside = sequences[: max(1, len(sequences) // 10)]
    sequences = sequences[len(aside) :]
    generator = torch.random.fork_rng()
    with generator, torch.enable_grad():
        torch.manual_seed(options.seed)
        context = begin()
        best = _fit(model, context, sequences, aside, options, order)
    context.load_state_dict(best)
    context.requires_grad_(False)
    return context


def _fit(
    model: Any,
    context: nn.Module,
    sequences: list[list[int]],
    aside: list[list[int]],
    options: LearnedContextOptions,
    order: random.Random,
) -> dict[str, Tensor]:
    """The parameters that predict the transcripts kept aside best."""
    optimiser = torch.optim.Adam(context.parameters(), lr=options.rate)
    steps = options.epochs * -(-len(sequences) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    lowest = loss_per_label(model, context, aside, options.batch)
    best = {key: value.detach().clone() for key, value in context.state_dict().items()}
    for _ in range(options.epochs):
        order.shuffle(sequences)
        for at in range(0, len(sequences), options.batch):
            loss, labels = _loss(model, context, sequences[at : at + options.batch])
            optimiser.zero_grad()
            torch.autograd.backward(loss / labels)
            optimiser.step()
            schedule.step()
        now = loss_per_label(model, context, aside, options.batch)
        if now < lowest:
            lowest = now
            best = {key: value.detach().clone() for key, value in context.state_dict().items()}
    return best


@torch.no_grad()
def loss_per_label(model: Any, context: Any, sequences: Sequence[Sequence[int]], batch: int = 8) -> float:
    """−log P per label, the end included, in nats: the logarithm of the internal LM's perplexity."""
    total, count = 0.0, 0
    for at in range(0, len(sequences), batch):
        loss, labels = _loss(model, context, sequences[at : at + batch])
        total, count = total + float(loss), count + labels
    return total / count


def _loss(model: Any, context: Any, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, int]:
    """−log P of the sequences, ends included, summed; and how many labels that are."""
    eos = model.tokens.eos
    if eos is None:
        raise BadInputError("the model has no end-of-sentence unit")
    longest = max(len(y) for y in sequences)
    padded = torch.full((len(sequences), longest + 1), -100)
    for row, y in zip(padded, sequences, strict=True):
        row[: len(y) + 1] = torch.tensor([*y, eos])
    padded = padded.to(model.device)
    inputs = padded[:, :-1].clamp(min=0)
    logits = model.teacher_forced(inputs, context).float() + model.allowed.clamp(min=-1e4)
    loss = F.cross_entropy(logits.flatten(0, 1), padded.flatten(), ignore_index=-100, reduction="sum")
    return loss, int((padded >= 0).sum())
