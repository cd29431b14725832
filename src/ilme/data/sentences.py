"""From lines to paragraphs, and from paragraphs to sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ilme.data.normalise import clean

__all__ = ["Layout", "guess_layout", "paragraphs", "split_sentences"]

Layout = Literal["lines", "wrapped", "indented"]

LONGEST_PARAGRAPH = 1 << 16  # characters; a longer one is cut, so that memory stays bounded

_ABBREVIATIONS = frozenset(
    (  # noqa: SIM905
        "mr mrs ms messrs mme mlle dr prof rev hon st sr jr capt col gen lt sgt maj adm gov sen rep pres "
        "vs etc e.g i.e cf viz eds al inc ltd co corp dept jan feb apr aug sept sep oct nov dec a.m p.m u.s u.k"
    ).split()
)
_BEFORE_NUMBERS = frozenset("no nos vol vols p pp ch fig figs eq sec art".split())  # noqa: SIM905
# A run of end marks, closing quotes or brackets, a space, then something a sentence starts with.
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"')\]]* (?=[\"'(\[]*[^\W_a-z])")
_MARK = re.compile(r"[.!?]")


def split_sentences(text: str) -> list[str]:
    """Cuts a paragraph after end marks that are followed by a capital or a digit, but not after an abbreviation or an
    initial. Takes time linear in the text, whatever the text is.
    """
    text = clean(text)
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if match[0] == ". " and _is_abbreviation(text, start, match.start()):
            continue
        sentences.append(text[start : match.end() - 1])
        start = match.end()
    if start < len(text):
        sentences.append(text[start:])
    return sentences


def _is_abbreviation(text: str, start: int, dot: int) -> bool:
    """Whether the word that ends at `dot` is known to take a dot: Mr, e.g, or an initial such as J."""
    begin = text.rfind(" ", max(start, dot - 12), dot) + 1
    word = text[max(begin, start) : dot].lstrip("\"'([")
    if word.lower() in _BEFORE_NUMBERS and text[dot + 2].isdigit():
        return True
    return (len(word) == 1 and word.isupper() and word != "I") or word.lower() in _ABBREVIATIONS


def guess_layout(lines: Sequence[str]) -> Layout:
    """How a text uses lines, seen from its first few thousand.

    `wrapped`: sentences run over line ends and a blank line ends a paragraph; `indented`: the same, and a
    line that starts with a space begins a new paragraph; `lines`: each line stands alone.
    """
    full = [line for line in lines if line.strip()]
    if len(full) < 4:
        return "lines"
    marked = sum(bool(_MARK.search(line)) for line in full) / len(full)
    ended = sum(line.rstrip(" \t\"'”’)]").endswith((".", "!", "?", "…")) for line in full) / len(full)
    if marked < 0.2 or ended > 0.6:
        return "lines"
    indented = sum(line[0] in " \t" for line in full) / len(full)
    return "indented" if 0.005 < indented < 0.4 else "wrapped"


def paragraphs(lines: Iterable[str], layout: Layout) -> Iterator[str]:
    """Joins lines to paragraphs; blank ones are left out."""
    if layout == "lines":
        yield from (line for line in lines if line and not line.isspace())
        return
    held: list[str] = []
    size = 0
    for line in lines:
        blank = not line or line.isspace()
        if held and (blank or size > LONGEST_PARAGRAPH or (layout == "indented" and line[0] in " \t")):
            yield " ".join(held)
            held, size = [], 0
        if not blank:
            held.append(line)
            size += len(line)
    if held:
        yield " ".join(held)
