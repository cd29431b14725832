"""A KenLM binary as a token scorer, through the `kenlm` package (extra `kenlm`).

A binary hashes its n-grams, so nobody can list the words that follow a context: a row is V separate
questions. Rows are therefore kept by context. Where the ARPA file is still at hand, `NGramScorer` makes the
same rows many times faster, and on CUDA without a copy from the host.
"""

from __future__ import annotations

import math
import os
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.lm.arpa import LN10, MOST_ORDERS, NEVER, Units
from ilme.lm.ngram import lm_tokens
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["KenLMScorer"]

_MAGIC = b"mmap lm http://kheafield.com/code"
_VERSION = b" format version 5\n"
_ORDER_AT, _COUNTS_AT = 88, 108  # bytes before the order and before the counts of a binary's header
NOTHING = -1  # fills a context that is shorter than the model's order allows


def check_header(path: Path) -> None:
    """A binary's header promises no more than its file holds: KenLM would map it, and read past the end.

    Other files, such as ARPA, are left to KenLM.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_COUNTS_AT + 8 * MOST_ORDERS)
    if not head.startswith(_MAGIC):
        return
    if not head[len(_MAGIC) :].startswith(_VERSION):
        raise CheckpointError(f"{path} is a KenLM binary of another version, or was never completed; build it again")
    order = head[_ORDER_AT] if len(head) > _ORDER_AT else 0
    if not 1 <= order <= MOST_ORDERS or len(head) < _COUNTS_AT + 8 * order:
        raise CheckpointError(f"{path} is a damaged KenLM binary: its header is cut off or names order {order}")
    counts = struct.unpack_from(f"<{order}Q", head, _COUNTS_AT)
    if not counts[0] or sum(counts) > 8 * size:  # a trie packs an n-gram into a few bits
        raise CheckpointError(
            f"{path} is a damaged KenLM binary: its header counts {sum(counts):,} n-grams in {size:,} bytes; copy it "
            "again"
        )


class KenLMScorer:
    """A KenLM model over an inventory. The state is the last N − 1 symbols of each sequence (n, N − 1)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokens: Tokens,
        units: Units = "ids",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kept_rows: int = 4096,
    ) -> None:
        """Loads a binary or an ARPA file.

        Args:
            path: The model.
            tokens: The inventory; a blank in it becomes the end of sentence.
            units: Whether the model's words are decimal ids or the pieces themselves.
            device: Where rows are handed out; they are made on the CPU.
            dtype: Number format of rows.
            kept_rows: How many rows to keep, the least recently used given up first.
        """
        if not Path(path).is_file():
            raise BadInputError(f"no KenLM model at {path}")
        check_header(Path(path))
        try:
            import kenlm
        except ImportError as error:
            raise MissingExtraError("kenlm", "kenlm") from error
        if kept_rows < 1:
            raise BadInputError(f"kept_rows must be at least 1, got {kept_rows}")
        try:
            self._model: Any = kenlm.Model(os.fspath(path))
        except (OSError, RuntimeError) as error:
            raise BadInputError(f"{path} is not a model that KenLM reads: {error}") from error
        self._new_state = kenlm.State
        self.tokens = lm_tokens(tokens)
        self.device, self.dtype = torch.empty(0, device=device).device, dtype
        self.order: int = self._model.order
        self._kept_rows = kept_rows
        self._rows: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._words = list(self.tokens.pieces) if units == "pieces" else [str(i) for i in range(len(tokens))]
        if self.tokens.eos is not None:
            self._words[self.tokens.eos] = "</s>"
        self._never = self.tokens.sos if self.tokens.sos != self.tokens.eos else None
        self._missing = [i for i, w in enumerate(self._words) if w not in self._model and i != self._never]
        if len(self._missing) > len(self._words) // 2:
            raise BadInputError(
                f"{path} knows {len(self._words) - len(self._missing)} of the {len(self._words)} {units} of the "
                "inventory: it was trained on another vocabulary, or its words are the other kind of units"
            )

    def start(self, n: int) -> tuple[Tensor, State]:
        context = torch.full((n, max(self.order - 1, 0)), NOTHING, dtype=torch.int64)
        if self.order > 1:
            context[:, -1] = len(self.tokens)
        context = context.to(self.device)
        return self._score(context), context

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        context = torch.cat([state, labels[:, None]], 1)[:, 1:] if self.order > 1 else state
        return self._score(context), context

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows)) if self.tokens.eos is None else rows[:, self.tokens.eos]

    def _score(self, context: Tensor) -> Tensor:
        """log P(· | context) (n, V) of each context (n, N − 1)."""
        if not len(context):
            return torch.empty(0, len(self.tokens), dtype=self.dtype, device=self.device)
        return torch.stack([self._row(tuple(symbols)) for symbols in context.tolist()]).to(self.device)

    def _row(self, symbols: tuple[int, ...]) -> Tensor:
        row = self._rows.get(symbols)
        if row is not None:
            self._rows.move_to_end(symbols)
            return row
        row = self._rows[symbols] = self._make_row(symbols)
        if len(self._rows) > self._kept_rows:
            self._rows.popitem(last=False)
        return row

    def _make_row(self, symbols: tuple[int, ...]) -> Tensor:
        state, spare = self._new_state(), self._new_state()
        self._model.NullContextWrite(state)
        for symbol in symbols:
            if symbol == len(self.tokens):
                self._model.BeginSentenceWrite(state)
            elif symbol != NOTHING:
                self._model.BaseScore(state, self._words[symbol], spare)
                state, spare = spare, state
        ask = self._model.BaseScore
        row = torch.tensor([ask(state, word, spare) for word in self._words], dtype=torch.float64) * LN10
        if self._missing:  # they share <unk>, so that the row still sums to 1
            row[self._missing] -= math.log(len(self._missing))
        if self._never is not None:
            row[self._never] = NEVER
        return row.clamp_(min=NEVER).to(self.dtype)
