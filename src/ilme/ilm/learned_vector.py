"""Learns from text what takes the place of the acoustics of an RNN-T or an AED: one vector and one number.

    minimise  − Σ_y Σ_u log softmax(κ z_u(y; v))_{y_u}     over v and κ; every weight of the model is frozen

    RNN-T: z_u = J(v + g_u) without the blank; v (J,) is where f_t enters the joint network     (Eq. 24 has v = 0)
    AED:   z_u = W_d DecoderRNN(h_{u−1}, e_{u−1} + v) + b_d; v (E,) is where the context enters  (Eq. 31 has v = 0)

A network that was trained to listen is too sure of itself where there is nothing to hear; κ says by how much. The
learning starts from v = 0 and κ = 1, the paper's estimate, keeps a tenth of the sentences aside, and returns what
predicted those best, so it cannot end worse than it began. It needs the source transcripts and no audio.
Contexts of attention decoders were learned by Zeineldeen et al. (2021, arXiv 2104.05544) and Liu et al. (2022, arXiv
2201.11627).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.errors import BadInputError
from ilme.models.aed import AED
from ilme.models.rnnt import RNNT

__all__ = ["LearnedVector", "LearnedVectorOptions", "learn_vector"]


@dataclass(frozen=True)
class LearnedVector:
    """What an internal LM puts in place of the acoustics.

    Attributes:
        vector: v, (J,) of an RNN-T or (E,) of an AED.
        scale: κ, a factor of the logits.
    """

    vector: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class LearnedVectorOptions:
    """How long and how the vector is learned.

    Attributes:
        sentences: Most sentences that are read, drawn from all that are given.
        epochs: Passes over them.
        batch: Sentences in a step.
        rate: Adam's first learning rate; it falls to 0 along a cosine.
        scale: Learn κ as well; otherwise it stays 1.
        seed: Seed of the draw and the order.
    """

    sentences: int = 4000
    epochs: int = 4
    batch: int = 32
    rate: float = 0.02
    scale: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sentences", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise BadInputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.rate > 0:
            raise BadInputError(f"rate must be above 0, got {self.rate}")


def learn_vector(
    model: RNNT | AED, sentences: Sequence[Sequence[int]], options: LearnedVectorOptions | None = None
) -> LearnedVector:
    """Learns the vector of a model in evaluation mode; the model does not change.

    Args:
        model: The network.
        sentences: Token ids without special ids: the transcripts that the model was trained on, or text like them.
        options: How.
    """
    options = options or LearnedVectorOptions()
    if not isinstance(model, RNNT | AED):
        raise BadInputError(f"a vector is learned for an RNN-T or an AED, not for {type(model).__name__}")
    if model.training:
        raise BadInputError("the model is in training mode: call model.eval() before its internal LM is learned")
    usable = [list(y) for y in sentences if len(y)]
    if len(usable) < 2:
        raise BadInputError(f"a learned internal LM needs at least two sentences, got {len(usable)}")
    random.Random(options.seed).shuffle(usable)
    usable = usable[: max(2, options.sentences)]
    aside = max(1, len(usable) // 10)
    with torch.enable_grad():
        return _fit(model, _batches(usable[aside:], options.batch), _batches(usable[:aside], options.batch), options)


def _batches(sentences: list[list[int]], size: int) -> list[list[list[int]]]:
    """Sentences of like length together: little padding."""
    ordered = sorted(sentences, key=len)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


def _fit(
    model: RNNT | AED, train: list[list[list[int]]], aside: list[list[list[int]]], options: LearnedVectorOptions
) -> LearnedVector:
    """The vector that predicts the sentences kept aside best."""
    weight = model.output.weight
    width = model.config.joint if isinstance(model, RNNT) else model.embedding.embedding_dim
    vector = torch.zeros(width, device=weight.device, dtype=weight.dtype, requires_grad=True)
    sharpness = torch.zeros((), device=weight.device, dtype=weight.dtype, requires_grad=True)  # log κ
    learned = [vector, sharpness] if options.scale else [vector]
    optimiser = torch.optim.Adam(learned, lr=options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.epochs * len(train))
    order = random.Random(options.seed)
    best, lowest = LearnedVector(vector.detach().clone()), _mean_loss(model, aside, vector, sharpness)
    for _ in range(options.epochs):
        order.shuffle(train)
        for batch in train:
            gradients = torch.autograd.grad(_losses(model, batch, vector, sharpness).mean(), learned)
            for parameter, gradient in zip(learned, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
            schedule.step()
        now = _mean_loss(model, aside, vector, sharpness)
        if now < lowest:
            best, lowest = LearnedVector(vector.detach().clone(), float(sharpness.detach().exp())), now
    return best


@torch.no_grad()
def _mean_loss(model: RNNT | AED, batches: list[list[list[int]]], vector: Tensor, sharpness: Tensor) -> float:
    """−log P per label, in nats: the logarithm of the perplexity."""
    return float(torch.cat([_losses(model, batch, vector, sharpness) for batch in batches]).double().mean())


def _losses(model: RNNT | AED, sentences: Sequence[Sequence[int]], vector: Tensor, sharpness: Tensor) -> Tensor:
    """−log P of every label of the sentences, of an AED also of their ends: (N,)."""
    rows = [torch.tensor(y, dtype=torch.long) for y in sentences]
    labels = pad_sequence(rows, batch_first=True).to(model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)[:, None]
    steps = torch.arange(labels.shape[1] + 1, device=model.device)
    if isinstance(model, RNNT):
        inside = steps[:-1] < lengths
        with torch.no_grad():
            g = model.predict_all(labels)[:, :-1][inside]
        logits = model.join(vector.expand_as(g), g) * sharpness.exp()
        logits[:, model.tokens.blank] = -torch.inf
        return F.cross_entropy(logits, labels[inside], reduction="none")
    inside = steps <= lengths
    targets = F.pad(labels, (0, 1)).masked_fill(steps == lengths, model.tokens.eos or 0)
    state, outputs = model.zero_state(len(rows)), []
    for previous in F.pad(labels, (1, 0), value=model.sos).unbind(1):
        h, state = model.decode(previous, vector.expand(len(rows), -1), state)
        outputs.append(h)
    logits = model.output(torch.stack(outputs, 1)[inside]) * sharpness.exp()
    return F.cross_entropy(logits, targets[inside], reduction="none")
