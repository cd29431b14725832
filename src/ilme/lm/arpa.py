"""ARPA files: the text format in which every n-gram toolkit writes a back-off model.

An entry of order k is `log10 P(w_k | w_1 … w_{k-1}) <tab> w_1 … w_k [<tab> log10 back-off of w_1 … w_k]`.
ARPA counts in log10; everything that leaves this module is in natural logarithms.
"""

from __future__ import annotations

import gzip
import itertools
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_path
from ilme.tokens import Tokens

__all__ = ["Arpa", "NGramTable", "Units", "read_arpa", "write_arpa"]

Units = Literal["ids", "pieces"]

LN10 = math.log(10.0)
MOST_ORDERS = 100  # more than any toolkit writes
LARGEST_BACKOFF = 100 * LN10  # ln of a back-off weight; what a model needs lies near 1
NEVER = -99.0 * LN10  # the customary log10 of an impossible word; finite, so that 0 · NEVER is 0


@dataclass(frozen=True)
class NGramTable:
    """All n-grams of one order.

    Attributes:
        words: Symbol of each word (M, k), int64.
        log_prob: ln P(last word | the others) (M,), float64.
        backoff: ln of the back-off weight of the whole n-gram as a context (M,), float64; 0 for the highest order.
    """

    words: NDArray[np.int64]
    log_prob: NDArray[np.float64]
    backoff: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Arpa:
    """A back-off model over symbols: 0 … V−1 are token ids, V is the sentence start.

    Attributes:
        size: V, the number of token ids.
        tables: One table per order, unigrams first.
        missing: Ids without a unigram of their own: they are written `<unk>`.
        unknown: The id under which `<unk>` stands in `tables`; None when nothing is missing.
        eos: The id that stands for `</s>`; None when the inventory has no place for it.
    """

    size: int
    tables: tuple[NGramTable, ...]
    missing: tuple[int, ...] = field(default=())
    unknown: int | None = None
    eos: int | None = None

    @property
    def order(self) -> int:
        return len(self.tables)

    @property
    def start(self) -> int:
        """The symbol of `<s>`."""
        return self.size


def read_arpa(path: str | os.PathLike[str], tokens: Tokens, units: Units | None = None) -> Arpa:
    """Reads an ARPA file (plain or .gz) whose words are the pieces, or the decimal ids, of an inventory.

    `<s>` is the sentence start, `</s>` the id tokens.eos, `<unk>` the id tokens.unk and every id that has no unigram.

    Args:
        path: The file.
        tokens: The inventory its words belong to.
        units: How the file writes a word; None to see from the file's first comment or from its unigrams.

    Raises:
        BadInputError: The file is not ARPA, is cut off, or has words that are not in the inventory.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInputError(f"no ARPA file at {path}")
    try:
        with _open_text(path, "rt", path.suffix == ".gz") as stream:
            return _Reader(path, stream, tokens, units).read()
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInputError(f"{path} is not an ARPA file, or is damaged: {error}") from error


def _open_text(path: Path, mode: Literal["rt", "wt"], compressed: bool) -> IO[str]:
    if compressed:
        return gzip.open(path, mode, encoding="utf-8", newline="\n")
    return path.open(mode, encoding="utf-8", newline="\n")


_BLOCK = 1 << 16  # lines parsed together
_Entry = tuple[list[str], float, float]


class _Reader:
    """One pass over an ARPA file."""

    def __init__(self, path: Path, stream: IO[str], tokens: Tokens, units: Units | None) -> None:
        self.path = path
        self.stream = stream
        self.tokens = tokens
        self.units = units
        self.line_number = 0

    def read(self) -> Arpa:
        counts = self._header()
        unigrams: list[_Entry] = []
        while len(unigrams) < counts[0]:
            unigrams.append(self._entry(self._next_line(), 1, len(counts) == 1))
        symbols = self._symbols([words[0] for words, _, _ in unigrams])
        known = set(symbols.values())
        missing = tuple(i for i in range(len(self.tokens)) if i not in known)
        unknown = self._unknown_id(missing)
        if unknown is not None:
            symbols["<unk>"] = symbols["<UNK>"] = unknown
        tables = [self._table(unigrams, symbols, 1)]
        for order, count in enumerate(counts[1:], 2):
            tables.append(self._section(order, count, order == len(counts), symbols))
        if self._next_line() != "\\end\\":
            raise self._error("expected \\end\\ after the last section")
        return Arpa(len(self.tokens), tuple(tables), missing, unknown, self.tokens.eos)

    def _next_line(self) -> str:
        """The next line that is not empty."""
        for line in self.stream:
            self.line_number += 1
            stripped = line.strip(" \t\r\n")
            if stripped:
                return stripped
        raise self._cut_off()

    def _cut_off(self) -> BadInputError:
        return BadInputError(f"{self.path} ends after line {self.line_number}, before \\end\\: the file was cut off")

    def _error(self, problem: str) -> BadInputError:
        return BadInputError(f"{self.path}, line {self.line_number}: {problem}")

    def _header(self) -> list[int]:
        while (line := self._next_line()) != "\\data\\":
            declared = re.search(r"\bunits=(ids|pieces)\b", line) if line.startswith("#") else None
            if declared and self.units is None:
                self.units = "ids" if declared[1] == "ids" else "pieces"
            if self.line_number > 1000:
                raise self._error("no \\data\\ line so far: this is not an ARPA file")
        counts: list[int] = []
        while True:
            line = self._next_line()
            if line == "\\1-grams:":
                break
            match = re.fullmatch(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,15})", line)
            if not match or int(match[1]) != len(counts) + 1:
                raise self._error(f"expected 'ngram {len(counts) + 1}=COUNT' or '\\1-grams:', found {line[:80]!r}")
            counts.append(int(match[2]))
            self._check_counts(counts)
        if not counts:
            raise self._error("the header counts no n-grams")
        return counts

    def _check_counts(self, counts: list[int]) -> None:
        """What the header promises can be there: an n-gram is a number and a word, four bytes at the least."""
        if len(counts) > MOST_ORDERS:
            raise self._error(f"the model has more than {MOST_ORDERS} orders")
        size = self.path.stat().st_size
        if self.path.suffix != ".gz" and counts[-1] > size // 4:
            raise self._error(f"{counts[-1]} n-grams are counted, more than the {size} bytes of the file can hold")

    def _entry(self, line: str, order: int, highest: bool) -> _Entry:
        parts = line.split()
        if len(parts) not in (order + 1, order + 2):
            raise self._error(f"an entry of order {order} has {order + 1} or {order + 2} fields, found {len(parts)}")
        try:
            log_prob = float(parts[0])
            backoff = float(parts[-1]) if len(parts) == order + 2 and not highest else 0.0
        except ValueError as error:
            raise self._error(f"not a number: {error}") from error
        if math.isnan(log_prob) or log_prob > 1e-6 or math.isnan(backoff) or backoff * LN10 > LARGEST_BACKOFF:
            raise self._error(f"log10 probability {parts[0]} with back-off {backoff} is not possible")
        return parts[1 : order + 1], log_prob, backoff

    def _section(self, order: int, count: int, highest: bool, symbols: dict[str, int]) -> NGramTable:
        if (line := self._next_line()) != f"\\{order}-grams:":
            raise self._error(
                f"expected '\\{order}-grams:' after the entries of order {order - 1}, found {line[:80]!r}"
            )
        parts = [self._table([], symbols, order)]
        while count > 0:
            lines = list(itertools.islice(self.stream, min(count, _BLOCK)))
            if not lines:
                raise self._cut_off()
            table = _parse_block(lines, order, highest, symbols)
            if table is not None:
                self.line_number += len(lines)
                count -= len(lines)
            else:  # a blank, odd or wrong line is among them: one at a time, so that an error names it
                entries = []
                for text in lines:
                    self.line_number += 1
                    if text.strip(" \t\r\n"):
                        entries.append(self._entry(text, order, highest))
                table = self._table(entries, symbols, order)
                count -= len(entries)
            parts.append(table)
        return NGramTable(
            np.concatenate([p.words for p in parts]),
            np.concatenate([p.log_prob for p in parts]),
            np.concatenate([p.backoff for p in parts]),
        )

    def _symbols(self, unigrams: Sequence[str]) -> dict[str, int]:
        """The symbol of each word that the unigrams name, `<unk>` left out unless it is a piece."""
        start, end = {"<s>": len(self.tokens)}, {} if self.tokens.eos is None else {"</s>": self.tokens.eos}
        words = [w for w in unigrams if w not in ("<s>", "</s>", "<unk>", "<UNK>")]
        by_piece = {piece: i for i, piece in enumerate(self.tokens.pieces) if i not in self.tokens.special}
        by_id = {str(i): i for i in range(len(self.tokens))}
        units = self.units or self._guess_units(words, by_piece, by_id)
        known = by_piece if units == "pieces" else by_id
        for word in words:
            if word not in known:
                raise BadInputError(
                    f"{self.path}: the word {word!r} is not one of the {len(known)} {units} of the "
                    "inventory; train the n-gram model on text tokenised with the same tokenizer"
                )
        return {w: known[w] for w in words} | start | end

    def _guess_units(self, words: Sequence[str], by_piece: dict[str, int], by_id: dict[str, int]) -> Units:
        pieces = all(w in by_piece for w in words)
        ids = all(w in by_id for w in words)
        if words and pieces and ids:
            raise BadInputError(f"{self.path}: every word is both a piece and an id; say units='pieces' or units='ids'")
        return "ids" if ids else "pieces"

    def _unknown_id(self, missing: tuple[int, ...]) -> int | None:
        if self.tokens.unk is not None and (self.tokens.unk in missing or not missing):
            return self.tokens.unk if missing else None
        return missing[0] if missing else None

    def _table(self, entries: list[_Entry], symbols: dict[str, int], order: int) -> NGramTable:
        """Numbers for entries; those whose words have no symbol are left out.

        These are n-grams with `</s>` where the inventory has no end, and with `<unk>` where no id is missing.
        """
        kept = [(words, p, b) for words, p, b in entries if all(w in symbols for w in words)]
        if len(kept) < len(entries):
            for words, _, _ in entries:
                strange = next((w for w in words if w not in symbols and w not in ("</s>", "<unk>", "<UNK>")), None)
                if strange is not None:
                    raise BadInputError(
                        f"{self.path}: {strange!r} is in an n-gram of order {order}, not in the unigrams"
                    )
        return _natural(
            np.array([[symbols[w] for w in words] for words, _, _ in kept], dtype=np.int64).reshape(len(kept), order),
            np.array([p for _, p, _ in kept], dtype=np.float64),
            np.array([b for _, _, b in kept], dtype=np.float64),
        )


def _natural(
    words: NDArray[np.int64], log10_prob: NDArray[np.float64], log10_backoff: NDArray[np.float64]
) -> NGramTable:
    return NGramTable(words, np.maximum(log10_prob * LN10, NEVER), np.maximum(log10_backoff * LN10, NEVER))


def _parse_block(lines: list[str], order: int, highest: bool, symbols: dict[str, int]) -> NGramTable | None:
    """All entries of lines that are alike and right; None if any is not."""
    fields = "".join(lines).split()
    width, odd = divmod(len(fields), len(lines))
    if odd or width not in (order + 1, order + 2):
        return None
    count = len(lines)
    try:
        log_prob = np.fromiter(map(float, fields[0::width]), np.float64, count)
        backoff = np.zeros(count)
        if width == order + 2 and not highest:
            backoff = np.fromiter(map(float, fields[order + 1 :: width]), np.float64, count)
        words = np.empty((count, order), dtype=np.int64)
        for j in range(order):
            words[:, j] = np.fromiter(map(symbols.__getitem__, fields[j + 1 :: width]), np.int64, count)
    except (KeyError, ValueError):
        return None
    impossible = np.isnan(log_prob).any() or np.isnan(backoff).any() or (log_prob > 1e-6).any()
    if impossible or (backoff * LN10 > LARGEST_BACKOFF).any():
        return None
    return _natural(words, log_prob, backoff)


def write_arpa(path: str | os.PathLike[str], arpa: Arpa, tokens: Tokens, units: Units = "ids") -> None:
    """Writes a model as ARPA, atomically; a name that ends in .gz is compressed.

    With units "ids" the words are decimal ids, which no tokenizer's spaces or odd pieces can break; with
    "pieces" they are the pieces themselves, and a piece that holds white space is an error.
    """
    path = Path(path)
    names = _names(tokens, units)
    with atomic_path(path) as partial, _open_text(partial, "wt", path.suffix == ".gz") as stream:
        stream.write(f"# units={units} vocabulary={arpa.size}\n\\data\\\n")
        stream.writelines(
            f"ngram {k}={len(t) + (1 if k == 1 and not arpa.missing else 0)}\n" for k, t in enumerate(arpa.tables, 1)
        )
        for order, table in enumerate(arpa.tables, 1):
            stream.write(f"\n\\{order}-grams:\n")
            if order == 1 and not arpa.missing:
                stream.write("-100\t<unk>\n")  # readers that demand the word find it
            stream.writelines(_entries(table, names, order < arpa.order))
        stream.write("\n\\end\\\n")


def _names(tokens: Tokens, units: Units) -> list[str]:
    names = list(tokens.pieces) if units == "pieces" else [str(i) for i in range(len(tokens))]
    broken = next((n for n in names if not n or n.split() != [n]), None)
    if broken is not None:
        raise BadInputError(
            f"the piece {broken!r} is empty or holds white space, which ARPA cannot write; use units='ids'"
        )
    if tokens.eos is not None:
        names[tokens.eos] = "</s>"
    return [*names, "<s>"]


def _entries(table: NGramTable, names: list[str], with_backoff: bool) -> Iterator[str]:
    block = 1 << 16
    for at in range(0, len(table), block):
        words = table.words[at : at + block].tolist()
        probs = (table.log_prob[at : at + block] / LN10).tolist()
        backoffs = (table.backoff[at : at + block] / LN10).tolist()
        for ws, p, b in zip(words, probs, backoffs, strict=True):
            text = " ".join([names[w] for w in ws])
            yield f"{p:.9g}\t{text}\t{b:.9g}\n" if with_backoff else f"{p:.9g}\t{text}\n"
