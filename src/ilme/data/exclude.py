"""Keeping evaluation text out of training text: sentences that share an n-gram of words with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ilme.data.normalise import spoken

__all__ = ["Exclusion"]


@dataclass(frozen=True)
class Exclusion:
    """The n-grams of an evaluation set.

    Both sides are compared in the spoken form, so case, punctuation and the spelling of numbers hide nothing.

    Attributes:
        ngrams: Every n-gram of the evaluation texts, words joined by spaces.
        words: Every word in them: a text is only looked at where `length` such words follow one another.
        length: n.
    """

    ngrams: frozenset[str]
    words: frozenset[str]
    length: int = 8

    @classmethod
    def from_texts(cls, texts: Iterable[str], length: int = 8) -> Exclusion:
        ngrams: set[str] = set()
        words: set[str] = set()
        for text in texts:
            parts = spoken(text).split()
            if len(parts) >= length:
                words.update(parts)
                ngrams.update(" ".join(parts[i : i + length]) for i in range(len(parts) - length + 1))
        return cls(frozenset(ngrams), frozenset(words), length)

    def overlaps(self, sentences: Sequence[str], are_spoken: bool = False) -> list[str | None]:
        """For each sentence of a running text the first n-gram it shares with the evaluation set, or None.

        An n-gram that runs over the end of a sentence counts for every sentence it touches: evaluation utterances are
        seldom cut where sentences are. `are_spoken` says that the sentences are in the spoken form already.
        """
        found: list[str | None] = [None] * len(sentences)
        if not self.ngrams:
            return found
        words: list[str] = []
        owner: list[int] = []
        for i, sentence in enumerate(sentences):
            parts = (sentence if are_spoken else spoken(sentence)).split()
            words += parts
            owner += [i] * len(parts)
        run = 0
        for end, word in enumerate(words):
            run = run + 1 if word in self.words else 0
            if run < self.length:
                continue
            ngram = " ".join(words[end - self.length + 1 : end + 1])
            if ngram in self.ngrams:
                for i in range(owner[end - self.length + 1], owner[end] + 1):
                    found[i] = found[i] or ngram
        return found
