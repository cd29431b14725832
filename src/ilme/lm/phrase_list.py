"""Lists of phrases, and how a model's tokens write them.

A file has one phrase a line. A number after a tab is the phrase's weight, 1 if there is none: 2 counts twice as much.
Lines that are empty or begin with # are passed over.

    # the cast of A Christmas Carol
    Ebenezer Scrooge
    Fezziwig	2

A phrase has one bonus for each label that it is written with, times its weight; in a long list its first labels earn
nothing (`ilme.lm.long_lists`). It may be said anywhere, so each of its spellings is listed: with the space before it
and without, as it stands in the file, and as the model would write it at the beginning of a sentence. Where the model's
tokens have no case, it is written as it is said.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ilme.data.normalise import spoken, written
from ilme.errors import BadInputError
from ilme.lm.long_lists import CrowdedPhrases, crowd
from ilme.lm.phrases import PhraseScorer, WordEdges
from ilme.runtime.files import write_text
from ilme.tokens import Tokenizer, Tokens, spelling

__all__ = ["Phrase", "PhraseLike", "as_phrases", "compile_phrases", "read_phrases", "word_edges", "write_phrases"]

HEAVIEST = 100.0
LONGEST = 200  # characters: a longer line is a sentence, and no phrase


@dataclass(frozen=True)
class Phrase:
    """A name or a term that may be said.

    Attributes:
        text: As it is written.
        weight: How much it counts beside the others.
    """

    text: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        text = written(self.text) if isinstance(self.text, str) else ""
        if not any(c.isalnum() for c in text):
            raise BadInputError(f"a phrase is words, got {str(self.text)[:40]!r}")
        if len(text) > LONGEST:
            raise BadInputError(f"a phrase has at most {LONGEST} characters, {text[:40]!r}… has {len(text)}")
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= HEAVIEST:
            raise BadInputError(f"the weight of {text!r} must be a number above 0, at most {HEAVIEST:.0f}: {weight!r}")
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "weight", float(weight))


PhraseLike = str | tuple[str, float] | Phrase


def as_phrases(items: Iterable[PhraseLike]) -> tuple[Phrase, ...]:
    """Phrases out of texts, or of texts with weights; each text once, with the last weight that it has."""
    if isinstance(items, str):
        raise BadInputError(f"phrases is a list of them, not one text; give [{items[:40]!r}]")
    found: dict[str, Phrase] = {}
    for item in items:
        try:
            phrase = item if isinstance(item, Phrase) else Phrase(item) if isinstance(item, str) else Phrase(*item)
        except TypeError:
            raise BadInputError(f"a phrase is a text, or a text and its weight, got {str(item)[:40]!r}") from None
        found[phrase.text] = phrase
    return tuple(found.values())


def read_phrases(path: str | Path) -> tuple[Phrase, ...]:
    """The phrases of a file."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a folder, a device that never ends
        raise BadInputError(f"{path} is no regular file; name a file of phrases, one a line")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise BadInputError(f"there is no file of phrases {path}") from None
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            found.append(_parsed(line))
        except BadInputError as error:
            raise BadInputError(f"{path}, line {number}: {error}") from None
    if not found:
        raise BadInputError(f"{path} holds no phrases; write one a line")
    return as_phrases(found)


def _parsed(line: str) -> Phrase:
    text, *rest = line.rstrip().split("\t")
    if not rest:
        return Phrase(text)
    try:
        (weight,) = map(float, rest)
    except ValueError:
        raise BadInputError(f"expected a phrase, or a phrase, a tab and a number, got {line.strip()[:60]!r}") from None
    return Phrase(text, weight if math.isfinite(weight) else 0.0)


def write_phrases(path: Path, phrases: Sequence[Phrase]) -> None:
    """Writes a file that `read_phrases` reads, whole or not at all."""
    write_text(path, "".join(p.text + ("" if p.weight == 1 else f"\t{p.weight:g}") + "\n" for p in phrases))


# --- as labels --------------------------------------------------------------------------------------------------------


def compile_phrases(
    phrases: Sequence[Phrase], tokenizer: Tokenizer, tokens: Tokens, device: torch.device | str = "cpu"
) -> tuple[PhraseScorer, list[str]]:
    """The scorer of the phrases, and those that these tokens cannot write, which are left out.

    Args:
        phrases: At least one that can be written.
        tokenizer: Text to labels.
        tokens: The model's inventory.
        device: Where the scorer runs.
    """
    writer = _Writer(tokenizer, tokens)
    bonuses: dict[tuple[int, ...], float] = {}
    left_out = []
    for phrase in phrases:
        sequences = writer(phrase.text)
        for labels in sequences:
            bonuses[labels] = max(bonuses.get(labels, 0.0), phrase.weight * len(labels))
        if not sequences:
            left_out.append(phrase.text)
    if not bonuses:
        raise BadInputError(f"the model's tokens can write none of the phrases, such as {left_out[:3]}")
    return CrowdedPhrases(tokens, bonuses, word_edges(tokens), device, crowd(len(phrases))), left_out


class _Writer:
    """Text to every label sequence that stands for it: spellings, with the space before it and without."""

    def __init__(self, tokenizer: Tokenizer, tokens: Tokens) -> None:
        self.tokenizer: Any = tokenizer
        self.tokens = tokens
        self.ids = {piece: i for i, piece in reversed(list(enumerate(tokens.pieces)))}
        letters = {c for text in spelling(tokens) if text for c in text if c.isalpha()}
        self.lower, self.upper = any(c.islower() for c in letters), any(c.isupper() for c in letters)

    def __call__(self, text: str) -> list[tuple[int, ...]]:
        found: dict[tuple[int, ...], None] = {}
        for spelled in self.spellings(text):
            for labels in self._labels(spelled):
                if (
                    labels
                    and self.tokens.unk not in labels
                    and _letters(self.tokenizer.decode(labels)) == _letters(spelled)
                ):
                    found[tuple(labels)] = None
        return list(found)

    def spellings(self, text: str) -> list[str]:
        """As it stands, and as it may stand in a sentence; what has no case is written as it is said."""
        if not (self.lower and self.upper):
            return [spoken(text).upper() if self.upper else spoken(text)]
        found = [text, text[0].upper() + text[1:]]
        if not (text != text.lower() and text != text.upper()):  # the list has no case: the model may write either
            found += [text.lower(), " ".join(word[:1].upper() + word[1:] for word in text.lower().split())]
        return list(dict.fromkeys(found))

    def _labels(self, text: str) -> list[list[int]]:
        """The tokenizer's own split of the text, after a space and after none."""
        if hasattr(self.tokenizer, "encode_raw"):
            return [self.tokenizer.encode(text), *(self.tokenizer.encode_raw(lead + text) for lead in (" ", ""))]
        labels = list(self.tokenizer.encode(text))
        first = self.tokens.pieces[labels[0]] if labels else ""
        if not first.startswith("▁"):
            return [labels]
        bare = labels[1:] if first == "▁" else [self.ids.get(first[1:], -1), *labels[1:]]
        return [labels] if -1 in bare else [labels, bare]


def _letters(text: str) -> str:
    return "".join(text.split())


def word_edges(tokens: Tokens) -> WordEdges:
    """Where words begin and end in labels, by the first and the last character of each piece."""
    texts = spelling(tokens)
    return WordEdges(
        begins=tuple(text is not None and text.startswith(" ") for text in texts),
        closes=tuple(not text or not _of_a_word(text[0]) for text in texts),
        opens=tuple(not text or not _of_a_word(text[-1]) for text in texts),
    )


def _of_a_word(character: str) -> bool:
    """Whether it goes on with the word that stands before it; scripts without spaces have no such words."""
    if character == "\ufffd":
        return True
    return character.isalnum() and unicodedata.east_asian_width(character) not in "WF"
