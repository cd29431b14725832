"""What is subtracted, smoothed: an LM that finds nothing impossible, so that no label is rewarded without bound.

    P'(v | y) = (1 − ε) P(v | y) + ε q(v),   so   −log P'(v | y) ≤ −log ε − log q(v)

A network off its ground is confidently wrong: an internal LM gives a loop −17 nats a label, where not to know at all
(uniform over 4000 units) is −8.3, and −μ log P rewards the loop the more, the longer it is. q is uniform over the
outcomes, or given, such as the unigram of the source text; one mechanism for internal LMs, source LMs and bigrams.

    labels      all have their share of q, those too that a model suppresses: no search takes them, whatever they score
    the end     is an outcome as any label is, where the scorer's inventory has one; a scorer that does not score the
                end, as a transducer's internal LM, still does not
    blank, sos  are no outcomes: q is 0 there, and what the scorer says stays, but for the factor 1 − ε
    log 1       is what a scorer says of a label that it passes over (folded punctuation, time stamps): it stays log 1

ε = 0 is no wrapper at all. A scorer that shares the work of its model's own step still does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import SharedPrediction, SharedStep, TokenScorer
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["SmoothedPrediction", "SmoothedScorer", "SmoothedStep", "Smoothing", "smoothed", "uniform"]


def uniform(tokens: Tokens, device: torch.device | str = "cpu") -> Tensor:
    """log q (V,): the same for every label and, where there is one, the end; −inf for blank and sos."""
    outcomes = torch.ones(len(tokens), dtype=torch.bool)
    for i in {tokens.blank, tokens.sos} - {None, tokens.eos}:
        outcomes[i] = False
    count = int(outcomes.sum())
    log_q = torch.full((len(tokens),), -math.log(max(count, 1)), dtype=torch.float64)
    return log_q.masked_fill(~outcomes, -torch.inf).to(device)


class Smoothing:
    """The formula above, on rows of log P.

    Args:
        share: ε, at least 0 and below 1; 0 leaves every row as it is.
        background: log q (V,).
    """

    def __init__(self, share: float, background: Tensor) -> None:
        if not 0 <= share < 1:
            raise BadInputError(f"the share of the background must be at least 0 and below 1, got {share}")
        self.share = share
        self.kept = math.log1p(-share)
        self.floor = background + math.log(share) if share else background

    def __call__(self, rows: Tensor) -> Tensor:
        """log P' (n, V) of rows log P (n, V), or (n, 1) for a scorer that has one score for all."""
        if not self.share:
            return rows
        mixed = torch.logaddexp(rows + self.kept, self.floor.to(rows.device, rows.dtype))
        return torch.where(rows == 0, rows, mixed)


class SmoothedScorer:
    """A scorer with every row smoothed; implements `ilme.protocols.TokenScorer`.

    Args:
        base: What is smoothed.
        smoothing: How.
    """

    def __init__(self, base: TokenScorer, smoothing: Smoothing) -> None:
        self.base, self.smoothing = base, smoothing
        self.tokens: Tokens = base.tokens
        self.device: torch.device = base.device

    @property
    def capturable(self) -> bool:
        return getattr(self.base, "capturable", False)

    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.base.start(n)
        return self.smoothing(rows), state

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        rows, state = self.base.score(labels, state)
        return self.smoothing(rows), state

    def finish(self, rows: Tensor) -> Tensor:
        return self.base.finish(rows)


class SmoothedPrediction(SmoothedScorer):
    """A smoothed internal LM of a transducer: still nothing but the host's own language terms are needed."""

    base: Any

    @property
    def host(self) -> Any:
        return self.base.host

    def rows_of(self, g: Tensor) -> Tensor:
        """log P' (n, V) from the host's language terms g (n, J)."""
        return self.smoothing(self.base.rows_of(g))


class SmoothedStep(SmoothedScorer):
    """A smoothed internal LM of an attention decoder: it still takes its step together with the host's."""

    base: Any

    @property
    def host(self) -> Any:
        return self.base.host

    def step_both(
        self, labels: Tensor, state: State, internal: State, memory: State
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one pass over the weights."""
        own, (rows, new) = self.base.step_both(labels, state, internal, memory)
        return own, (self.smoothing(rows), new)


def smoothed(scorer: TokenScorer, share: float, background: Tensor | None = None) -> TokenScorer:
    """The scorer with a share ε of the background log q (V,), uniform if not given; the scorer itself for ε = 0."""
    if not share:
        return scorer
    if background is not None and background.shape != (len(scorer.tokens),):
        raise BadInputError(
            f"the background has {tuple(background.shape)} numbers and the subtracted scorer {len(scorer.tokens)} "
            "tokens: make it of text in the model's own tokens"
        )
    smoothing = Smoothing(share, uniform(scorer.tokens, scorer.device) if background is None else background)
    if isinstance(scorer, SharedPrediction):
        return SmoothedPrediction(scorer, smoothing)
    return (SmoothedStep if isinstance(scorer, SharedStep) else SmoothedScorer)(scorer, smoothing)
