"""A back-off n-gram model as a token scorer, from an ARPA file.

    P(w | h) = P*(w | h)                 if the n-gram h w is in the model
             = bo(h) · P(w | h')         otherwise, h' being h without its oldest word

The model is an automaton. A node is a context; it knows its back-off weight, its shorter context h', and
the words that were seen after it. A row over the whole vocabulary starts as the unigram row plus the back-
off weights along the chain h, h', h'', …, and the seen words of each context are then written over it, the
shortest context first. So a row costs one copy of V numbers and as many writes as there are seen words: no
search over the vocabulary, no cache, and on CUDA no wait for the device.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError
from ilme.lm.arpa import NEVER, Arpa, Units, read_arpa
from ilme.lm.ngram_file import Automaton, Stored, new_ngram_file, read_ngram_file
from ilme.runtime.configs import config_from_json, read_json_object
from ilme.runtime.state import State
from ilme.runtime.tensors import read_header
from ilme.tokens import Tokens

if TYPE_CHECKING:
    from ilme.lm.kenlm_binary import KenLMScorer

KENLM = b"mmap lm http://kheafield.com"  # how KenLM's binaries begin

__all__ = ["NGramScorer", "is_ngram", "lm_tokens", "load_ngram"]


def lm_tokens(tokens: Tokens) -> Tokens:
    """The inventory as a language model uses it: the end of sentence takes the id of a transducer's blank."""
    if tokens.blank is None:
        return tokens
    return replace(tokens, blank=None, eos=tokens.blank if tokens.eos is None else tokens.eos)


def build_automaton(arpa: Arpa) -> Automaton:
    """Joins the tables of all orders into one automaton, order by order, so that shorter contexts are known first."""
    width, order = arpa.size + 1, arpa.order
    unigram = np.full(width, NEVER)
    backoff = np.zeros(1 + width)
    unigram[arpa.tables[0].words[:, 0]] = arpa.tables[0].log_prob
    backoff[1 + arpa.tables[0].words[:, 0]] = arpa.tables[0].backoff
    unigram[arpa.start] = NEVER
    key, log_prob = np.arange(width), unigram
    shorter = np.zeros(1 + width, dtype=np.int64)
    target = np.arange(1, 1 + width) if order > 1 else np.zeros(width, dtype=np.int64)
    if order == 1:
        backoff, shorter = backoff[:1], shorter[:1]
    for table in arpa.tables[1:]:
        if (table.words[:, 1:] == arpa.start).any():
            raise BadInputError("an n-gram has the sentence start after another word; the start can only come first")
        highest = table.words.shape[1] == order
        parent = _nodes(table.words[:, :-1], key, width)
        new_key = parent * width + table.words[:, -1]
        rank = np.argsort(new_key, kind="stable")
        new_key = new_key[rank]
        if (repeated := np.flatnonzero(np.diff(new_key) == 0)).size:
            words = table.words[rank[repeated[0]]].tolist()
            raise BadInputError(f"the n-gram of symbols {words} stands twice in the model")
        suffix = _follow(shorter[parent[rank]], table.words[rank, -1], key, target, shorter, width, order)
        first_node = len(key) + 1
        key = np.concatenate([key, new_key])
        log_prob = np.concatenate([log_prob, table.log_prob[rank]])
        if highest:
            target = np.concatenate([target, suffix])
        else:
            target = np.concatenate([target, np.arange(first_node, first_node + len(table))])
            backoff = np.concatenate([backoff, table.backoff[rank]])
            shorter = np.concatenate([shorter, suffix])
    first = np.searchsorted(key, np.arange(len(backoff) + 1) * width)
    return Automaton(key, log_prob, target, first, backoff, shorter, order)


def _nodes(contexts: NDArray[np.int64], key: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The node of each context (M, k): walk its words from the root."""
    node = np.zeros(len(contexts), dtype=np.int64)
    for word in contexts.T:
        wanted = node * width + word
        arc = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        if (absent := np.flatnonzero(key[arc] != wanted)).size:
            raise BadInputError(
                f"an n-gram continues the symbols {contexts[absent[0]].tolist()}, which the lower order "
                "lacks: the model is damaged or was pruned without keeping the contexts of what is left"
            )
        node = arc + 1
    return node


def _follow(
    node: NDArray[np.int64],
    word: NDArray[np.int64],
    key: NDArray[np.int64],
    target: NDArray[np.int64],
    shorter: NDArray[np.int64],
    width: int,
    order: int,
) -> NDArray[np.int64]:
    """The longest known context that ends in `word` after each context `node`."""
    result = word + 1  # the unigram always exists
    found = np.zeros(len(node), dtype=bool)
    for _ in range(order):
        wanted = node * width + word
        arc = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        hit = (key[arc] == wanted) & ~found
        result = np.where(hit, target[arc], result)
        found |= hit
        node = shorter[node]
    return result


class NGramScorer:
    """An n-gram model over an inventory, as a TokenScorer. The state is the node of each sequence's context
    (n,).
    """

    def __init__(
        self,
        automaton: Automaton,
        tokens: Tokens,
        missing: tuple[int, ...] = (),
        unknown: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Use `from_arpa`, `NGramScorer.load` or `load_ngram` unless the automaton is already at hand.

        Args:
            automaton: The model.
            tokens: The inventory; a blank in it becomes the end of sentence.
            missing: Ids that the model has no unigram for. They share the probability of `<unk>`
                evenly, so that a row still sums to 1.
            unknown: The id under which the automaton knows `<unk>`.
            device: Where rows are made.
            dtype: Number format of rows.
        """
        self.tokens = lm_tokens(tokens)
        self.device = torch.empty(0, device=device).device  # "cuda" with its index, as tensors say it
        self.dtype = dtype
        self.automaton = automaton
        self.order = automaton.order
        self.missing, self.unknown = missing, unknown
        size = len(self.tokens)
        self._width = size + 1

        def placed(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

        self._key = placed(automaton.key)
        self._target = placed(automaton.target)
        self._shorter = placed(automaton.shorter)
        self._first = placed(automaton.first)
        self._log_prob = placed(automaton.log_prob).to(dtype)
        self._backoff = placed(automaton.backoff).to(dtype)
        self._unigram = self._log_prob[:size].clone()
        if self.tokens.sos is not None and self.tokens.sos != self.tokens.eos:
            self._unigram[self.tokens.sos] = NEVER
        self._alias = torch.arange(size, device=self.device)
        self._missing = torch.tensor(missing, dtype=torch.int64, device=self.device) if missing else None
        if self._missing is not None:
            assert unknown is not None  # the reader gives both or neither
            self._alias[self._missing] = unknown
        self._padded = False
        if self.device.type != "cpu":
            self._pad()
        self._start = size + 1 if automaton.order > 1 else 0

    @classmethod
    def from_arpa(
        cls,
        path: str | os.PathLike[str],
        tokens: Tokens,
        units: Units | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> NGramScorer:
        """Reads an ARPA file whose words are the pieces or the ids of `tokens` (see `read_arpa`)."""
        tokens = lm_tokens(tokens)
        arpa = read_arpa(path, tokens, units)
        return cls(build_automaton(arpa), tokens, arpa.missing, arpa.unknown, device, dtype)

    def _pad(self) -> None:
        """From now on rows are written with padding, which needs no look at how many words a context has."""
        self._padded = True
        self._symbol = self._key % self._width
        # The root's arcs are the unigram row itself, so for the overwriting it counts as a node without arcs.
        self._count = self._first.diff()
        self._count[0] = 0
        self._most = int(self._count.max())

    def start(self, n: int) -> tuple[Tensor, State]:
        node = torch.full((n,), self._start, dtype=torch.int64, device=self.device)
        return self._rows(node), node

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        node = self._next(state, self._alias[labels])
        return self._rows(node), node

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows)) if self.tokens.eos is None else rows[:, self.tokens.eos]

    def _next(self, node: Tensor, word: Tensor) -> Tensor:
        """The longest known context that ends in `word` after each context `node`; both (n,)."""
        result = self._target[word].long()  # arc `word` is its unigram
        found = torch.zeros_like(word, dtype=torch.bool)
        for _ in range(self.order - 1):
            wanted = node * self._width + word
            arc = torch.searchsorted(self._key, wanted).clamp_(max=len(self._key) - 1)
            hit = (self._key[arc] == wanted) & ~found
            result = torch.where(hit, self._target[arc].long(), result)
            found |= hit
            node = self._shorter[node].long()
        return result

    def _rows(self, node: Tensor) -> Tensor:
        """log P(· | context) (n, V) of each node (n,)."""
        chain, paid = (
            [],
            [],
        )  # the contexts from the longest to the shortest, and the back-off paid to reach each
        total = torch.zeros(len(node), dtype=self.dtype, device=self.device)
        for _ in range(self.order - 1):
            chain.append(node)
            paid.append(total)
            total = total + self._backoff[node]
            node = self._shorter[node].long()
        # With padding, one column more than the vocabulary takes the writes of the padding; it is cut off
        # at the end.
        width = self._width if self._padded else self._width - 1
        rows = torch.empty(len(node), width, dtype=self.dtype, device=self.device)
        torch.add(self._unigram, total[:, None], out=rows[:, : self._width - 1])
        for context, cost in zip(reversed(chain), reversed(paid), strict=True):
            (self._overwrite_padded if self._padded else self._overwrite_ragged)(rows, context, cost)
        rows = rows[:, : self._width - 1]
        if self._missing is not None:
            share = rows[:, self.unknown, None] - float(np.log(len(self.missing)))
            rows[:, self._missing] = share.expand(-1, len(self.missing))
        return rows

    def _overwrite_ragged(self, rows: Tensor, context: Tensor, cost: Tensor) -> None:
        """Writes exactly the seen words; sizes depend on the data, which a CPU may look at."""
        first = self._first[context]
        # The root's arcs are the unigram row itself: for the overwriting it counts as a context without arcs.
        count = (self._first[context + 1] - first).masked_fill_(context == 0, 0)
        row = torch.repeat_interleave(count)
        before = torch.cumsum(count, 0) - count
        arc = torch.arange(len(row)) + (first - before)[row]
        symbol = self._key[arc] - (context * self._width)[row]
        rows.view(-1)[row * rows.shape[1] + symbol] = self._log_prob[arc] + cost[row]

    def _overwrite_padded(self, rows: Tensor, context: Tensor, cost: Tensor) -> None:
        """Writes as many words for each row as the largest context has: a size known without asking."""
        step = torch.arange(self._most, device=self.device)
        real = step < self._count[context][:, None]
        arc = torch.where(real, self._first[context][:, None] + step, 0)
        symbol = torch.where(real, self._symbol[arc], self._width - 1)
        rows.scatter_(1, symbol, self._log_prob[arc] + cost[:, None])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model in a form that loads at once, see `ilme.lm.ngram_file`. Atomic."""
        a, stored = self.automaton, Stored(self.order, self.tokens, self.missing, self.unknown)
        with new_ngram_file(path, stored, len(a.key), len(a.backoff)) as new:
            for name in ("key", "first", "log_prob", "target", "backoff", "shorter"):
                getattr(new, name)[:] = getattr(a, name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> NGramScorer:
        """Opens what `save` wrote; on a CPU a row reads what it needs of the file."""
        automaton, stored = read_ngram_file(path)
        return cls(automaton, stored.tokens, stored.missing, stored.unknown, device, dtype)


def load_ngram(
    path: str | os.PathLike[str],
    tokens: Tokens | None = None,
    units: Units | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> NGramScorer | KenLMScorer:
    """An n-gram scorer from a file, whose kind its name tells.

    `.safetensors` is what `NGramScorer.save` wrote; `.bin`, `.binary` and `.klm` are KenLM binaries; all
    else is read as ARPA. For the last two the inventory is `tokens`, or the file NAME.tokens.json that
    `ilme ngram train` leaves beside the model.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return NGramScorer.load(path, device, dtype)
    if tokens is None:
        beside = path.with_name(f"{path.name}.tokens.json")
        if not beside.is_file():
            raise BadInputError(f"{path} names no inventory: give the tokens, or put {beside.name} beside it")
        tokens = _tokens_of(beside)
    if path.suffix in (".bin", ".binary", ".klm"):
        from ilme.lm.kenlm_binary import KenLMScorer

        return KenLMScorer(path, tokens, units or "ids", device, dtype)
    return NGramScorer.from_arpa(path, tokens, units, device, dtype)


def _tokens_of(file: Path) -> Tokens:
    try:
        return config_from_json(Tokens, read_json_object(file))
    except BadInputError as error:
        raise CheckpointError(f"{file} is no token inventory: {error}; write it again: ilme ngram train") from error


def is_ngram(name: str | os.PathLike[str]) -> bool:
    """Whether it is a file that `load_ngram` reads: by its name, or by its first bytes where others have such names."""
    path = Path(name)
    if not path.is_file():
        return False
    if path.suffix == ".safetensors":
        return not read_header(path).keys() & {"ilme", "ilme-internal"}
    if path.suffix in (".bin", ".binary", ".klm"):
        with path.open("rb") as stream:
            return stream.read(len(KENLM)) == KENLM
    return path.suffix in (".arpa", ".gz", ".lm") or path.name.endswith(".arpa.gz")
