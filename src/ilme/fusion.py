"""The one place where a λ appears.

    score(y) = log P_E2E(y|x) + λ_T log P_T(y) − μ log P_S(y) + β |y| + κ B(y),   P_S(v|y) = (1 − ε) P(v|y) + ε q(v)

BS has λ_T = μ = 0, Shallow Fusion μ = 0; Density Ratio subtracts a source-domain LM (Eq. 15 of the paper), LODR a
source-domain bigram, ILME the model's own internal LM (Eq. 18). They differ in the subtracted scorer and in nothing
else: no search knows which of them it runs. Whatever P is, ε bounds what subtracting it can reward (`ilme.smoothing`).
B(y) is the bonus of the listed phrases that y holds, names and terms say (`ilme.lm.phrases`); any method can have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import NullScorer, TokenScorer
from ilme.smoothing import smoothed
from ilme.tokens import check_same_vocabulary

__all__ = ["Fusion", "FusionWeights", "fuse"]

Score = TypeVar("Score", float, Tensor)

SCORERS = ("lm", "subtracted", "phrases")  # those of `Fusion`, each with a weight of its name
LARGEST = 100.0  # a weight beyond it is a mistake: the model itself would no longer count


@dataclass(frozen=True)
class FusionWeights:
    """Weights of the component scores. None is negative: the subtraction is in `fuse`.

    Attributes:
        lm: λ_T, weight of the external (target-domain) LM.
        subtracted: μ, weight of the LM that is subtracted: λ_S of Density Ratio, λ_I of ILME.
        length: β, reward for each label; the same for every method that is compared.
        background: ε, the share of a background distribution q in what is subtracted; 0 subtracts the LM as it is.
        phrases: κ, weight of the bonus for listed phrases.
    """

    lm: float = 0.0
    subtracted: float = 0.0
    length: float = 0.0
    background: float = 0.0
    phrases: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and (isinstance(value, int) or math.isfinite(value))):  # some integers are no floats
                raise BadInputError(f"FusionWeights.{field.name} must be a finite number, got {value!r}")
            if abs(value) > LARGEST:
                raise BadInputError(f"FusionWeights.{field.name} must be at most {LARGEST:.0f}, got {str(value)[:20]}")
            if value < 0 and field.name != "length":
                hint = "; the subtraction is built in, give μ itself" if field.name == "subtracted" else ""
                raise BadInputError(f"FusionWeights.{field.name} must not be negative, got {value!r}{hint}")
        if self.background >= 1:
            raise BadInputError(f"FusionWeights.background is a share and must be below 1, got {self.background!r}")


def fuse(
    asr: Score,
    lm: Score,
    subtracted: Score,
    length: Score | float,
    weights: FusionWeights,
    phrases: Score | float = 0.0,
) -> Score:
    """asr + λ_T·lm − μ·subtracted + β·length + κ·phrases (Eqs. 27 and 33); a weight of 0 leaves the sum as it is."""
    score = asr
    if weights.lm:
        score = _plus(score, weights.lm, lm)
    if weights.subtracted:
        score = _plus(score, -weights.subtracted, subtracted)
    if weights.length:
        score = score + weights.length * length
    if weights.phrases:
        score = score + weights.phrases * phrases
    return score


def _plus(score: Score, weight: float, part: Score) -> Score:
    """score + weight · part; of whole rows without a copy of the product."""
    if isinstance(score, Tensor) and isinstance(part, Tensor):
        return torch.add(score, part, alpha=weight)
    return score + weight * part


@dataclass(frozen=True)
class Fusion:
    """The scorers that a search adds and subtracts, with their weights.

    A scorer whose weight is 0 is replaced by the null scorer, so it is never called.

    Attributes:
        lm: The external LM.
        subtracted: What is subtracted: an internal LM, a source-domain LM, a bigram, nothing.
        weights: Their weights.
        background: log q (V,), which smooths what is subtracted; None is uniform over the outcomes.
        phrases: The bonus for listed phrases.
    """

    lm: TokenScorer | None = None
    subtracted: TokenScorer | None = None
    weights: FusionWeights = FusionWeights()
    background: Tensor | None = None
    phrases: TokenScorer | None = None

    def __post_init__(self) -> None:
        for name in SCORERS:
            if getattr(self, name) is None and getattr(self.weights, name):
                raise BadInputError(f"weights.{name} is {getattr(self.weights, name)} but no {name} scorer was given")

    def scorers(self, host: TokenScorer | object) -> tuple[TokenScorer, TokenScorer, TokenScorer]:
        """The LM, the subtracted scorer and the phrases to run beside `host`, checked against its vocabulary."""
        tokens, device = host.tokens, host.device  # type: ignore[union-attr]
        null = NullScorer(tokens, device)
        chosen = []
        for name in SCORERS:
            scorer = getattr(self, name) if getattr(self.weights, name) else null
            check_same_vocabulary(tokens, scorer.tokens, "model", f"{name} scorer")
            chosen.append(scorer)
        share = self.weights.background if self.weights.subtracted else 0.0
        return chosen[0], smoothed(chosen[1], share, self.background), chosen[2]
