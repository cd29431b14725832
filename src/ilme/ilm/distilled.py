"""A small LM distilled from a CTC model's own posteriors: an internal LM that knows the label before.

    minimise − Σ_u Σ_v q_u(v) log P(v | y_{u−1}),    q_u(v) ∝ [ψ(y_{<u} v) / ψ(y_{<u})]^τ,    P = softmax(b + W e)

q is what the model itself expects after its own labels, by CTC's prefix probabilities (`ilme.search.ctc_prefix`). These
are nearly sure of the label that was said, so the student would learn the transcripts; the exponent τ < 1 smooths them,
after label-level distillation with smoothing (arXiv 2506.06096). The student starts as the mean of q, a unigram, keeps
a tenth of the labels aside and returns what predicts those best, so it cannot end worse than that unigram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import CTCModel
from ilme.runtime.numerics import log_softmax
from ilme.search.ctc_prefix import CTCPrefixes

__all__ = ["DistilledOptions", "Student", "distil", "expectations"]

LEAST = 1e-8  # of the mean posterior: the logarithm of the first bias is finite


@dataclass(frozen=True)
class DistilledOptions:
    """How the LM is distilled.

    Attributes:
        width: Dimension of a label's embedding.
        steps: Of Adam, over all labels at once.
        rate: Adam's learning rate.
        sharpness: τ, the exponent that smooths the model's posteriors; 1 leaves them as they are.
        seed: Seed of the first weights and of which labels are kept aside.
    """

    width: int = 16
    steps: int = 150
    rate: float = 0.03
    sharpness: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.steps < 0 or not 0 < self.sharpness <= 1 or not self.rate > 0:
            raise BadInputError(f"width, steps, rate and sharpness must be positive, sharpness at most 1; got {self}")


@dataclass(frozen=True)
class Student:
    """log P(· | w) = log softmax(b + W e_w).

    Attributes:
        embedding: e (V, width); the blank's row stands for the start.
        output: W (V, width).
        bias: b (V,).
    """

    embedding: Tensor
    output: Tensor
    bias: Tensor

    def rows(self, before: Tensor, blank: int) -> Tensor:
        """Rows (n, V) after the labels (n,)."""
        logits = self.bias + self.embedding[before] @ self.output.T
        never = torch.zeros_like(logits)
        never[:, blank] = -torch.inf
        return log_softmax(logits + never)


@torch.no_grad()
def expectations(
    model: CTCModel, heard: Sequence[Tensor], transcripts: Sequence[Sequence[int]], sharpness: float
) -> tuple[Tensor, Tensor]:
    """The label before (N,) and q (N, V) of every label; of an utterance without labels, of its first.

    Args:
        model: The CTC model.
        heard: Encoder outputs (T, E) of each utterance.
        transcripts: Its labels; the model's own are meant.
        sharpness: τ.
    """
    blank = int(model.tokens.blank or 0)
    before: list[int] = []
    rows: list[Tensor] = []
    for h, y in zip(heard, transcripts, strict=True):
        emitted = log_softmax(model.emit(h.to(model.device)))[None]
        scorer = CTCPrefixes(emitted, torch.tensor([len(h)], device=emitted.device), blank)
        row, state = scorer.start()
        for u, label in enumerate(y or [blank]):
            before.append(y[u - 1] if u else blank)
            rows.append(row[0].clone())
            if u + 1 < len(y):
                row, state = scorer.step(torch.tensor([label], device=row.device), state)
    scores = torch.stack(rows) * sharpness
    scores[:, blank] = -torch.inf
    return torch.tensor(before, device=scores.device), scores.softmax(-1).float()


def distil(
    model: CTCModel,
    heard: Sequence[Tensor],
    transcripts: Sequence[Sequence[int]],
    options: DistilledOptions | None = None,
) -> Student:
    """Distils the LM; the model does not change. Arguments as for `expectations`."""
    options = options or DistilledOptions()
    before, q = expectations(model, heard, transcripts, options.sharpness)
    blank, V = int(model.tokens.blank or 0), len(model.tokens)
    generator = torch.Generator().manual_seed(options.seed)
    order = torch.randperm(len(q), generator=generator).to(q.device)
    aside, train = order[: max(1, len(q) // 10)], order[len(q) // 10 :]
    first = torch.randn(2, V, options.width, generator=generator).to(q.device) * options.width**-0.5
    bias = q[train].mean(0).clamp(min=LEAST).log()

    def student(parts: list[Tensor]) -> Student:
        return Student(*(x.detach().clone() for x in parts))

    def loss(parts: list[Tensor], which: Tensor) -> Tensor:
        rows = Student(*parts).rows(before[which], blank)
        return -(q[which] * rows.masked_fill(rows.isneginf(), 0.0)).sum(1).mean()

    with torch.enable_grad():
        # W starts at 0: the student is the unigram, and learns what the label before adds
        parts = [x.clone().requires_grad_() for x in (first[0], torch.zeros_like(first[1]), bias)]
        best, lowest = student(parts), float(loss(parts, aside).detach())
        optimiser = torch.optim.Adam(parts, lr=options.rate)
        for _ in range(options.steps):
            optimiser.zero_grad()
            loss(parts, train).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():
                now = float(loss(parts, aside))
            if now < lowest:
                best, lowest = student(parts), now
    return best
