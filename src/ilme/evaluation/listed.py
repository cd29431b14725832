"""Errors on listed words and on all others apart: what a list of phrases gives, and what it costs.

A reference word is listed where it stands in a listed phrase. An insertion counts for the listed words if the inserted
word stands in a phrase of the hypothesis (as Le et al. 2021 count), so names that were not said are errors of the list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ilme.evaluation.metrics import ErrorCounts, Measurement, align, normaliser
from ilme.lm.phrase_list import Phrase

__all__ = ["listed_errors"]

Starts = Mapping[str, list[tuple[str, ...]]]  # the phrases that begin with a word


def listed_errors(measured: Measurement, phrases: Iterable[Phrase]) -> tuple[ErrorCounts, ErrorCounts]:
    """The errors on listed words, and those on all others; together they are those of the measurement."""
    normalise = normaliser(measured.normaliser if measured.normaliser != "none" else "spoken")
    starts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for words in {tuple(normalise(phrase.text).split()) for phrase in phrases}:
        if words:
            starts[words[0]].append(words)
    listed, others = ErrorCounts(), ErrorCounts()
    for utterance in measured.utterances:
        ours, theirs = _errors(utterance.reference, utterance.hypothesis, starts)
        listed, others = listed + ours, others + theirs
    return listed, others


def _errors(reference: str, hypothesis: str, starts: Starts) -> tuple[ErrorCounts, ErrorCounts]:
    said, found = (_inside(text.lower().split(), starts) for text in (reference, hypothesis))
    counts = {True: ErrorCounts(), False: ErrorCounts()}
    kinds = {"equal": (1, 0, 0, 0), "substitute": (0, 1, 0, 0), "delete": (0, 0, 1, 0), "insert": (0, 0, 0, 1)}
    r = h = 0
    for edit in align(reference, hypothesis):
        counts[found[h] if edit.kind == "insert" else said[r]] += ErrorCounts(*kinds[edit.kind])
        r += edit.kind != "insert"
        h += edit.kind != "delete"
    return counts[True], counts[False]


def _inside(words: Sequence[str], starts: Starts) -> list[bool]:
    """Which words stand in a phrase; `'s` after one does not hide it."""
    plain = [word.removesuffix("'s") for word in words]
    inside = [False] * len(words)
    for i, first in enumerate(plain):
        for phrase in starts.get(first, ()):
            if tuple(plain[i : i + len(phrase)]) == phrase:
                inside[i : i + len(phrase)] = [True] * len(phrase)
    return inside
