"""How sure a recogniser is of each word that it wrote: what the n-best list says, and what the model heard.

    share(w)  = Σ P(y) over the hypotheses y that have w at its place        P as in `ilme.search.consensus`, T = 1
    heard     = log P_E2E(y*|x) / (|y*| + 1)                                 the mean over the labels of what is taken
    P(right)  = σ( a + b · logit share(w) + c · heard )

Without dev speech P(right) is the share. With it `ilme adapt` fits a, b and c (`ilme.tuning.confidence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel

from ilme.errors import BadInputError
from ilme.search.consensus import posteriors
from ilme.search.hypothesis import NBest

__all__ = ["WordConfidence", "confidences", "evidence"]

SUREST = 0.998  # of a share: a list of eight hypotheses can say no more


@dataclass(frozen=True)
class WordConfidence:
    """From what is known of a word to the probability that it is right; as it is made, the share itself.

    Attributes:
        offset: a
        share: b
        heard: c
    """

    offset: float = 0.0
    share: float = 1.0
    heard: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or abs(value) > 1000:
                raise BadInputError(f"confidence.{field.name} must be a number up to 1000, got {value!r}")

    def __call__(self, known: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(right) of words, from rows of `evidence` (n, 2)."""
        logits = self.offset + known @ np.array([self.share, self.heard])
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def evidence(nbest: NBest, exponent: float = 0.0) -> NDArray[np.float64]:
    """(logit of the share, what was heard) of each word of the first hypothesis (n, 2).

    Args:
        nbest: The list, what is taken first.
        exponent: α of the search that ranked it.
    """
    taken = nbest[0]
    words = taken.text.split()
    shares = np.zeros(len(words))
    for share, h in zip(posteriors(nbest, 1.0, exponent), nbest, strict=True):
        for op in Indel.opcodes(words, h.text.split()):
            if op.tag == "equal":
                shares[op.src_start : op.src_end] += share
    shares = np.clip(shares, 1 - SUREST, SUREST)
    heard = taken.scores.asr / (len(taken.tokens) + 1)
    return np.stack([np.log(shares / (1 - shares)), np.full(len(words), heard)], 1)


def confidences(nbest: NBest, exponent: float = 0.0, fitted: WordConfidence | None = None) -> Sequence[float]:
    """P(right) of each word of the first hypothesis."""
    found: Sequence[float] = (fitted or WordConfidence())(evidence(nbest, exponent)).tolist()
    return found
