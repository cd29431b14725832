"""Domain text in the model's own written style.

An LM helps a model only if it expects the spelling that the model writes. Whisper writes case and
punctuation, but no quotation marks, colons or dashes (they are suppressed). So before an LM is trained,

    clean      turns marks that the model never writes into ones that it does, or into nothing;
    sentences  cuts running text into sentences, and `group` joins neighbours into lines as long as
    utterances; recase     gives text without case and punctuation the case and the final mark that the model
    would write.

`needs_recasing` tells whether the last step is needed.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from ilme.errors import BadInputError

__all__ = ["clean", "group", "needs_recasing", "recase", "sentences"]

# What becomes of a mark that the model does not write; a mark that is not named here becomes a space.
SUBSTITUTES = {";": ",", ":": ",", "—": ", ", "–": ", ", "--": ", ", "…": "...", "’": "'", "‘": "'", "&": " and "}
QUOTES = re.compile("[\"“”„«»‟]|``|''")
LOOSE_QUOTE = re.compile(r"(?<!\w)'(?=[A-Z])|(?<=[.!?,])'(?=\s|$)")
BRACKETED = re.compile(r"\[[^\]]{0,80}\]")
ABBREVIATIONS = frozenset(
    re.findall(
        r"[\w']+",
        """mr mrs ms dr st messrs prof rev hon capt col gen lt sgt jr sr esq etc vs no vol""",
    )
)
FIRST_PERSON = re.compile(r"\bi(?=$|[\s,.!?]|'(?:m|ll|ve|d|s)\b)")
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
QUESTION = frozenset(
    re.findall(
        r"[\w']+",
        """what who whom whose when where why how which is are was were do does did can could will would shall should may
    have has had am isn't aren't don't doesn't didn't can't won't""",
    )
)


def clean(text: str, never: Iterable[str] = ()) -> str:
    """One line of text without marks that the model never writes.

    Args:
        text: The text.
        never: Single characters that the model's output layer cannot put out.
    """
    text = unicodedata.normalize("NFKC", text)
    text = BRACKETED.sub(" ", text)
    text = QUOTES.sub(" ", text)
    for mark, instead in SUBSTITUTES.items():
        text = text.replace(mark, instead)
    text = re.sub(r"\s-+\s", ", ", text)
    text = LOOSE_QUOTE.sub("", text)
    for mark in never:
        text = text.replace(mark, " ")
    text = re.sub(r"_+", "", text)
    text = re.sub(r"\s+(?=n't|'|[,.!?])", "", text)  # "do n't", "word ,"
    text = re.sub(r"(?:\s*,)+(?=[.!?])|^[\s,]+", "", text)
    text = re.sub(r",(?:\s*,)+", ",", text)
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """Running text cut after . ! ? before a capital, but not after abbreviations and initials."""
    parts: list[str] = []
    for piece in END.split(text):
        last = re.search(r"(\w+)\.$", parts[-1]) if parts else None
        if last and (last[1].lower() in ABBREVIATIONS or re.fullmatch(r"[A-Z]", last[1])):
            parts[-1] += " " + piece
        elif piece.strip():
            parts.append(piece.strip())
    return parts


def group(lines: Sequence[str], words: float = 18.0, seed: int = 0) -> Iterator[str]:
    """Joins neighbouring sentences into lines whose lengths scatter around `words`, as utterances do.

    An LM of single sentences believes that speech ends at every full stop.
    """
    draw = random.Random(seed)
    held: list[str] = []
    size, wanted = 0, draw.expovariate(1 / words)
    for line in lines:
        held.append(line)
        size += len(line.split())
        if size >= wanted:
            yield " ".join(held)
            held, size, wanted = [], 0, draw.expovariate(1 / words)
    if held:
        yield " ".join(held)


def needs_recasing(lines: Sequence[str]) -> bool:
    """Whether the text carries no case: fewer than one line in ten has a capital letter."""
    filled = [line for line in lines if any(c.isalpha() for c in line)]
    if not filled:
        raise BadInputError("the text has no line with a letter in it")
    return sum(any(c.isupper() for c in line) for line in filled) < 0.1 * len(filled)


def recase(line: str, names: Iterable[str] = ()) -> str:
    """Sentence case, a capital I, capitals for known names, and a final mark: ? after a question word, else a
    full stop.

    Args:
        line: Text without case.
        names: Words in lower case that the model writes with a capital.
    """
    line = " ".join(line.split())
    if not line:
        return ""
    line = FIRST_PERSON.sub("I", line)
    known = set(names)
    if known:
        line = " ".join(w[:1].upper() + w[1:] if w.strip(",.!?") in known else w for w in line.split())
    first = line.split()[0].lower().strip(",.")
    line = line[:1].upper() + line[1:]
    if line[-1] in ".!?,":
        return line
    return line + ("?" if first in QUESTION and len(line.split()) > 2 else ".")
