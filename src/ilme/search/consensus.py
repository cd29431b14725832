"""Which hypothesis to take: the one with the best score, or the one that agrees most with the rest of the list.

    P(y) ∝ exp( score(y) · (|y*| + 1)^α / T )            over the n-best list, y* its best; T → 0 leaves y* alone
    R(y) = Σ_y' P(y') · d(y', y)                         expected word errors if y is the answer (minimum Bayes risk)
    consensus = argmin R

score(y) is what the search ranked by; where it divided by (|y| + 1)^α, that of a whole utterance is put back. Lists of
several searches, with several internal LMs say, are joined as the mean of their posteriors. d is the Levenshtein
distance of words, whose case and marks do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from ilme.errors import BadInputError
from ilme.search.hypothesis import Hypothesis, NBest

__all__ = ["choose", "consensus", "expected_errors", "folded_words", "joined", "posteriors"]

MARKS = '.,!?;:"()[]…“”„'
Words = tuple[str, ...]


def posteriors(nbest: NBest, temperature: float = 1.0, exponent: float = 0.0) -> NDArray[np.float64]:
    """P(y) of each hypothesis of a list, as shares of the list.

    Args:
        nbest: The list.
        temperature: T; above 1 the list counts more, below 1 its best.
        exponent: α of the search that ranked it.
    """
    if not temperature > 0:
        raise BadInputError(f"a posterior needs a temperature above 0, got {temperature}")
    scores = np.array([h.score for h in nbest])
    best = nbest[int(scores.argmax())]
    scaled = scores * (len(best.tokens) + 1) ** exponent / temperature
    shares = np.exp(scaled - scaled.max())
    return np.asarray(shares / shares.sum())


def folded_words(text: str) -> Words:
    """The words of a text without what does not count: case, and marks beside a word."""
    return tuple(word for word in (w.strip(MARKS) for w in text.casefold().split()) if word)


def joined(lists: Sequence[NBest], temperature: float, exponent: float = 0.0) -> dict[Words, tuple[Hypothesis, float]]:
    """Every answer of the lists by its words: the hypothesis that has them, and P, the mean over the lists."""
    found: dict[Words, tuple[Hypothesis, float]] = {}
    for nbest in lists:
        for h, share in zip(nbest, posteriors(nbest, temperature, exponent) / len(lists), strict=True):
            first, before = found.get(folded_words(h.text), (h, 0.0))
            found[folded_words(h.text)] = first, before + float(share)
    return found


def expected_errors(shares: Mapping[Words, float]) -> dict[Words, float]:
    """R of each answer, all answers being candidates."""
    risk = dict.fromkeys(shares, 0.0)
    for said, share in shares.items():
        for answer in risk:
            risk[answer] += share * Levenshtein.distance(said, answer)
    return risk


def consensus(lists: Sequence[NBest], temperature: float, exponent: float = 0.0) -> NBest:
    """The hypotheses of all lists, that with the fewest expected errors first, the others as they come.

    Of equal ones the likeliest is first; of those that differ in case or marks alone, the first list's.

    Args:
        lists: n-best lists of one utterance, each ranked by its own search; empty ones say nothing.
        temperature: T of every posterior.
        exponent: α of the searches.
    """
    lists = [nbest for nbest in lists if nbest]
    if not lists:
        return []
    answers = joined(lists, temperature, exponent)
    risk = expected_errors({words: share for words, (_, share) in answers.items()})
    chosen = answers[min(risk, key=lambda words: (round(risk[words], 9), -answers[words][1]))][0]
    seen: dict[tuple[int, ...], Hypothesis] = {chosen.tokens: chosen}
    for h in (h for nbest in lists for h in nbest):
        seen.setdefault(h.tokens, h)
    return list(seen.values())


def choose(nbest: NBest, temperature: float, exponent: float = 0.0) -> NBest:
    """A list with its answer first: the best by score at a temperature of 0, else the consensus."""
    return consensus([nbest], temperature, exponent) if temperature else nbest
