"""Text to token files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ilme.data.textfiles import expand, sources
from ilme.data.tokenfile import write_tokens
from ilme.data.tokenizer import UNKNOWN, SentencePieceTokenizer
from ilme.errors import BadInputError

__all__ = ["TokenCounts", "text_lines", "tokenize_text"]

_BATCH = 10_000  # sentences handed to the tokenizer at once


@dataclass
class TokenCounts:
    """How much text became how many ids.

    Attributes:
        sentences: Sentences written.
        words: Their words.
        ids: Ids written, ends of sentences included.
        unknown: How many of them are <unk>.
    """

    sentences: int = 0
    words: int = 0
    ids: int = 0
    unknown: int = 0


def text_lines(inputs: Sequence[str]) -> Iterator[str]:
    """The lines of files and globs that are not blank; a file that cannot be read to its end is an error."""

    def stop(name: str, reason: str) -> None:
        raise BadInputError(f"{name} {reason}; prepare it first with: ilme text prepare")

    for source in sources(expand(inputs), stop):
        for line in source.lines:
            if text := line.strip():
                yield text


def tokenize_text(
    inputs: Sequence[str], tokenizer: SentencePieceTokenizer, out: str | os.PathLike[str], threads: int = 1
) -> TokenCounts:
    """Writes the text of files, one sentence to a line, as a token file, in constant memory."""
    tokenizer = tokenizer.for_role("lm")
    counts = TokenCounts()

    def sentences() -> Iterator[list[int]]:
        lines = text_lines(inputs)
        while batch := list(itertools.islice(lines, _BATCH)):
            counts.words += sum(len(line.split()) for line in batch)
            for ids in tokenizer.encode_many(batch, threads):
                counts.unknown += ids.count(UNKNOWN)
                yield ids

    counts.sentences, counts.ids = write_tokens(out, sentences(), tokenizer.tokens, tokenizer.to_json())
    return counts
