"""Rare words and names of a text that a model is likely to miss: a list of phrases for people to edit.

    surprise(w) = −log P_ILM(w | sentence start),    a word is worth times(w) · surprise(w)

P_ILM is the model's own internal LM: what it has never read costs many nats, and must be written in several tokens. A
word that the text writes with a capital inside sentences is a name, and is suggested as it is written there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ilme.errors import BadInputError
from ilme.ilm import internal_lm
from ilme.lm.phrase_list import LONGEST
from ilme.search.rescoring import sequence_scores

__all__ = ["Suggestion", "suggest_phrases"]

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
SHORTEST = 3  # letters
MOST = 5000  # words that the internal LM reads, those with most tokens and occurrences


@dataclass(frozen=True)
class Suggestion:
    """A word that may be missed.

    Attributes:
        text: As the text writes it.
        times: How often it stands there.
        surprise: Nats that the model's internal LM gives for it.
        pieces: The tokens that it is written with.
    """

    text: str
    times: int
    surprise: float
    pieces: tuple[str, ...]


def suggest_phrases(lines: Iterable[str], model: Any, count: int = 200, least: int = 1) -> list[Suggestion]:
    """The words of a text that a model is likeliest to miss, those that matter most first.

    Args:
        lines: The text.
        model: What `ilme.load_model` gives.
        count: Most words.
        least: Occurrences below which a word is left out.
    """
    words = {w: n for w, n in _words(lines).items() if n >= least}
    if not words:
        raise BadInputError(f"no word of {SHORTEST} to {LONGEST} letters stands in the text {least} times or more")
    split = {w: tuple(model.tokenizer.encode(w)) for w in words}
    several = {w: ids for w, ids in split.items() if len(ids) > 1 and model.tokens.unk not in ids}
    if not several:
        raise BadInputError("the model writes every word of the text with one token: there is nothing to suggest")
    chosen = sorted(several, key=lambda w: (-len(several[w]) * words[w], w))[:MOST]
    scores = sequence_scores(internal_lm(model), [several[w] for w in chosen]).tolist()
    found = [
        Suggestion(w, words[w], round(-score, 2), tuple(model.tokens.pieces[i] for i in several[w]))
        for w, score in zip(chosen, scores, strict=True)
    ]
    return sorted(found, key=lambda s: (-s.times * s.surprise, s.text))[:count]


def _words(lines: Iterable[str]) -> Counter[str]:
    """How often each word stands in the text; a capital at the beginning of a sentence says nothing about a name."""
    inside: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for line in lines:
        end = 0
        for match in WORD.finditer(line):
            begins = end == 0 or any(c in ".!?" for c in line[end : match.start()])
            word = re.sub("['’]s$", "", match[0])
            if SHORTEST <= len(word) <= LONGEST:
                (first if begins else inside)[word] += 1
            end = match.end()
    for word, n in first.items():
        lower = word[:1].lower() + word[1:]
        inside[lower if inside[lower] >= inside[word] else word] += n
    return +inside
