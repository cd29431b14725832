"""Training n-gram models on text of any size: counts are sorted on the disk, the model is written as it is made.

The model is that of `ilme.lm.ngram_train`. An n-gram is one number, its symbols the digits of base V + 1, so that
numbers ascend as n-grams do: by prefix, then by last word. The text is read piece by piece. The n-grams of a piece are
sorted and counted, and become a run on the disk; runs are then merged range by range of numbers. What follows goes
through the counts of an order in their order, block by block. Only what is looked up, the counts and probabilities of
the order below, is an array in memory.

    memory   about 30 bytes for each token of a piece and 28 for each n-gram below the highest order
    disk     12 bytes for each different n-gram, twice while runs are merged, and the model
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.lm.arpa import NEVER
from ilme.lm.ngram import lm_tokens
from ilme.lm.ngram_file import Automaton, Stored, new_ngram_file
from ilme.lm.ngram_train import FALLBACK, NGramOptions, discounted, discounts_of, unigrams, with_starts
from ilme.runtime.files import working_folder
from ilme.runtime.locks import only_run
from ilme.tokens import Tokens

__all__ = ["SortedNGram", "can_sort", "train_sorted"]

PIECE = 1 << 25  # tokens whose n-grams are sorted at a time
BLOCK = 1 << 22  # n-grams that are looked at at a time

Ids = NDArray[np.integer[Any]]
Array = NDArray[Any]


@dataclass(frozen=True)
class SortedNGram:
    """What there is to know about a training.

    Attributes:
        seen: Different n-grams of each order in the text, the start of sentence counted among the unigrams.
        kept: How many of them are in the model.
        discounts: D1, D2, D3+ of each order.
        fallbacks: Orders whose counts of counts define no discount between 0 and the count: they use 0.5, 1, 1.5.
    """

    seen: tuple[int, ...]
    kept: tuple[int, ...]
    discounts: tuple[tuple[float, float, float], ...]
    fallbacks: tuple[int, ...]


@dataclass
class _Order:
    """The n-grams of one order, ascending.

    Attributes:
        key: Their numbers (M,).
        count: How often each was seen (M,).
        rank: Which of those kept each is (M,), −1 for one that is left out; None where all are kept.
        kept: How many are kept.
    """

    key: Array
    count: Array
    rank: Array | None
    kept: int

    def __len__(self) -> int:
        return len(self.key)

    def blocks(self) -> Iterator[slice]:
        for low in range(0, len(self), BLOCK):
            yield slice(low, min(low + BLOCK, len(self)))

    def find(self, keys: Array) -> Array:
        """The places of keys that are all among this order's."""
        order = np.argsort(keys)  # ascending questions stay near each other in memory
        places = np.empty(len(keys), dtype=np.int64)
        places[order] = np.searchsorted(self.key, keys[order])
        return places

    def ranks(self, places: Array) -> Array:
        return places if self.rank is None else self.rank[places]


def can_sort(tokens: Tokens, order: int) -> bool:
    """Whether n-grams of this order are numbers of 63 bits."""
    return order >= 2 and (len(tokens) + 1) ** order < 2**63


def train_sorted(
    ids: Ids, tokens: Tokens, out: str | os.PathLike[str], options: NGramOptions | None = None, piece: int = PIECE
) -> SortedNGram:
    """Trains on ids (count,), every sentence followed by the end of sentence, and writes the model to `out`.

    Args:
        ids: The text; a memory-mapped one is read once for each order.
        tokens: Its inventory.
        out: The model, as `NGramScorer.save` writes it. What is sorted waits in its folder.
        options: Order, 2 at least, and pruning.
        piece: Tokens whose n-grams are sorted at a time.

    Raises:
        BadInputError: No text, ids outside the inventory, an inventory without an end of sentence, or one too large for
            n-grams of this order to be numbers of 63 bits.
    """
    options = options or NGramOptions()
    tokens = lm_tokens(tokens)
    if not can_sort(tokens, options.order):
        raise BadInputError(
            f"n-grams of order {options.order} over {len(tokens)} tokens are not sorted on the disk: order 2 and more, "
            "as far as 63 bits hold one; train on less text, in memory"
        )
    file = Path(out)
    with only_run(file), working_folder(file) as folder:
        orders = [_unigram_counts(ids, tokens, piece)]
        for k, limit in enumerate(options.thresholds[1:], 2):
            orders += [_sorted_counts(ids, tokens, k, limit, folder, piece)]
        adjusted = [_adjusted(orders, k, len(tokens) + 1) for k in range(options.order)]
        adjusted[0][len(tokens)] = 0  # the start of sentence is never predicted
        found = [discounts_of(_counts_of_counts(a)) for a in adjusted]
        discounts = [d or FALLBACK for d in found]
        _write(file, tokens, orders, adjusted, discounts)
    return SortedNGram(
        seen=tuple(int((o.count > 0).sum()) for o in orders),
        kept=tuple(o.kept for o in orders),
        discounts=tuple(discounts),
        fallbacks=tuple(k for k, d in enumerate(found, 1) if d is None),
    )


# --- counting --------------------------------------------------------------------------------------------------------


def _pieces(ids: Ids, tokens: Tokens, size: int) -> Iterator[Array]:
    """The text piece by piece, each of whole sentences: the start symbol V before each, empty ones left out."""
    low = 0
    while low < len(ids):
        high = min(low + size, len(ids))
        while high < len(ids):
            ends = np.flatnonzero(np.asarray(ids[low:high]) == tokens.eos)
            if len(ends):
                high = low + int(ends[-1]) + 1
                break
            high = min(high + size, len(ids))  # one sentence is longer than a piece
        part = np.asarray(ids[low:high])
        if (part != tokens.eos).any():
            yield with_starts(part, tokens)
        low = high


def _unigram_counts(ids: Ids, tokens: Tokens, piece: int) -> _Order:
    count = np.zeros(len(tokens) + 1, dtype=np.int64)
    for stream in _pieces(ids, tokens, piece):
        count += np.bincount(stream, minlength=len(count))
    if not count.any():
        raise BadInputError("there is no text to train an n-gram model on")
    return _Order(np.arange(len(count)), count, None, len(count))


def _sorted_counts(ids: Ids, tokens: Tokens, order: int, limit: int, folder: Path, piece: int) -> _Order:
    """The different n-grams of an order; none reaches over the end of a sentence."""
    runs = []
    for number, stream in enumerate(_pieces(ids, tokens, piece)):
        keys = np.sort(_numbers(stream, len(tokens) + 1, order, tokens.eos))
        runs.append(_stored(folder / f"{order}.{number}", *_tally(keys, None)))
    key, count = runs[0] if len(runs) == 1 else _merged(runs, folder / str(order))
    rank, kept = None, len(key)
    if limit:
        keep = count > limit
        kept = int(keep.sum())
        rank = np.where(keep, np.cumsum(keep) - 1, -1)
    return _Order(key, count, rank, kept)


def _numbers(stream: Array, width: int, order: int, eos: int | None) -> Array:
    """The number of the n-gram at each position where one begins."""
    length = max(0, len(stream) - order + 1)
    whole = np.ones(length, dtype=bool)
    number = np.zeros(length, dtype=np.int64)
    for k in range(order):
        part = stream[k : k + length]
        number *= width
        number += part
        if k < order - 1:
            whole &= part != eos
    return number[whole]


def _tally(keys: Array, counts: Array | None) -> tuple[Array, Array]:
    """The different ones of ascending keys, and the sums of their counts."""
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    if counts is None:
        summed = np.diff(np.append(begins, len(keys)))
    else:
        summed = np.add.reduceat(counts, begins) if len(begins) else counts
    return keys[begins], summed


def _stored(path: Path, key: Array, count: Array) -> tuple[Array, Array]:
    """The arrays as files, mapped."""
    if not len(key):
        return key, count.astype(np.int32)
    with _files(path) as (keys, counts):
        _append(keys, counts, key, count)
    return _mapped(path)


@contextmanager
def _files(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The files of a run: numbers and counts."""
    with (
        path.with_name(f"{path.name}.key").open("wb") as keys,
        path.with_name(f"{path.name}.count").open("wb") as counts,
    ):
        yield keys, counts


def _append(keys: IO[bytes], counts: IO[bytes], key: Array, count: Array) -> None:
    keys.write(key.data)  # NumPy's tofile says nothing of a disk that is full
    counts.write(count.astype(np.int32).data)


def _mapped(path: Path) -> tuple[Array, Array]:
    key = np.memmap(path.with_name(f"{path.name}.key"), np.int64, "r")
    return key, np.memmap(path.with_name(f"{path.name}.count"), np.int32, "r")


def _merged(runs: list[tuple[Array, Array]], path: Path) -> tuple[Array, Array]:
    """One run of several: of each in turn what lies in a range of keys, ranges such that a block holds it."""
    total = sum(len(key) for key, _ in runs)
    parts = -(-total // BLOCK)
    sample = np.sort(np.concatenate([key[:: max(1, len(key) // (64 * parts))] for key, _ in runs if len(key)]))
    bounds = sample[np.linspace(0, len(sample), parts, endpoint=False, dtype=np.int64)[1:]] if len(sample) else sample
    edges = [np.concatenate([[0], np.searchsorted(key, bounds), [len(key)]]) for key, _ in runs]
    with _files(path) as (keys, counts):
        for part in range(len(bounds) + 1):
            cut = [slice(int(edge[part]), int(edge[part + 1])) for edge in edges]
            key = np.concatenate([run[0][at] for run, at in zip(runs, cut, strict=True)])
            count = np.concatenate([run[1][at] for run, at in zip(runs, cut, strict=True)])
            order = np.argsort(key, kind="stable")
            key, count = _tally(key[order], count[order])
            _append(keys, counts, key, count)
    for run, _ in runs:
        if isinstance(run, np.memmap):
            name = Path(str(run.filename))
            name.unlink()
            name.with_suffix(".count").unlink()
    return _mapped(path)


def _adjusted(orders: list[_Order], k: int, width: int) -> Array:
    """a(g) of the n-grams of order k + 1: counts at the top, below it the number of different words before g."""
    counts = orders[k]
    if k + 1 == len(orders):
        return counts.count
    above, before = orders[k + 1], np.zeros(len(counts), dtype=np.int32)
    for block in above.blocks():
        suffix, times = _tally(np.sort(above.key[block] % width ** (k + 1)), None)
        before[np.searchsorted(counts.key, suffix)] += times.astype(np.int32)
    first = np.searchsorted(counts.key, (width - 1) * width**k)  # those from here on start a sentence
    before[first:] = counts.count[first:]
    return before


def _counts_of_counts(adjusted: Array) -> Array:
    found = np.zeros(6, dtype=np.int64)
    for low in range(0, len(adjusted), BLOCK):
        found += np.bincount(np.minimum(adjusted[low : low + BLOCK], 5), minlength=6)
    return found


# --- probabilities ---------------------------------------------------------------------------------------------------


def _write(
    file: Path,
    tokens: Tokens,
    orders: list[_Order],
    adjusted: list[Array],
    discounts: list[tuple[float, float, float]],
) -> None:
    """Writes the automaton, order by order; of each only the probabilities of the order below are in memory."""
    width, top = len(tokens) + 1, len(orders)
    sos = tokens.sos if tokens.sos != tokens.eos else None
    arcs = [width, *(o.kept for o in orders[1:])]
    base = np.concatenate([[0], np.cumsum(arcs)])  # the first arc of each order
    stored = Stored(top, tokens, () if sos is None else (sos,), sos)
    with new_ngram_file(file, stored, int(base[-1]), 1 + int(base[-2])) as new:
        lower = unigrams(adjusted[0].astype(np.int64), discounts[0], tokens)
        new.key[:width] = np.arange(width)
        new.log_prob[:width] = _logs(lower)
        if sos is not None:
            new.log_prob[sos] = NEVER
        new.target[:width] = np.arange(1, width + 1)
        new.shorter[: width + 1] = 0
        new.backoff[0] = 0
        for k in range(1, top):
            gamma = _gammas(orders, adjusted[k], discounts[k], k, width)
            _store(new.backoff, orders[k - 1], 1 + int(base[k - 1]), _logs(gamma))
            if k == 1 and sos is not None:
                new.backoff[1 + sos] = 0
            lower = _order(new, orders, k, base, (adjusted[k], discounts[k]), gamma, lower, width)
        new.first[0], new.first[1] = 0, width  # unigrams are the arcs of the empty context
        for low in range(1, len(new.backoff), BLOCK):
            high = min(low + BLOCK, len(new.backoff))
            new.first[low + 1 : high + 1] = np.searchsorted(new.key, np.arange(low + 1, high + 1) * width)


def _gammas(orders: list[_Order], adjusted: Array, discounts: tuple[float, float, float], k: int, width: int) -> Array:
    """γ(h) of each context of order k: what the discounts left; 1 where nothing follows."""
    counts, contexts = orders[k], orders[k - 1]
    total, left = (np.zeros(len(contexts)) for _ in range(2))
    for block in counts.blocks():
        a = adjusted[block].astype(np.int64)
        taken = discounted(a, discounts)
        if counts.rank is not None:
            taken = np.where(counts.rank[block] >= 0, taken, a)  # the whole count of what is left out
        prefix, begins = np.unique(counts.key[block] // width, return_index=True)
        places = np.searchsorted(contexts.key, prefix)
        total[places] += np.add.reduceat(a, begins)
        left[places] += np.add.reduceat(taken, begins)
    gamma: Array = np.divide(left, total, out=np.ones(len(contexts)), where=total > 0)
    return gamma


def _order(
    new: Automaton,
    orders: list[_Order],
    k: int,
    base: Array,
    counted: tuple[Array, tuple[float, float, float]],
    gamma: Array,
    lower: Array,
    width: int,
) -> Array:
    """Writes the arcs of order k + 1; their probabilities (M,), those of pruned n-grams too, for the order above."""
    counts, contexts, top = orders[k], orders[k - 1], k + 1 == len(orders)
    adjusted, discounts = counted
    probs = np.empty(0 if top else len(counts))
    at = int(base[k])
    for block in counts.blocks():
        key, a = counts.key[block], adjusted[block].astype(np.int64)
        keep = np.ones(len(key), dtype=bool) if counts.rank is None else counts.rank[block] >= 0
        taken = np.where(keep, discounted(a, discounts), a)
        parent = np.searchsorted(contexts.key, key // width)
        suffix = contexts.find(key % width**k)
        p = (a - taken) / _totals(counts, adjusted, key, block, width) + gamma[parent] * lower[suffix]
        if not top:
            probs[block] = p
        parents = 1 + base[k - 1] + contexts.ranks(parent[keep])
        suffixes = 1 + base[k - 1] + contexts.ranks(suffix[keep])
        arcs = slice(at, at + len(parents))
        new.key[arcs] = parents * width + key[keep] % width
        new.log_prob[arcs] = _logs(p[keep])
        new.target[arcs] = suffixes if top else np.arange(arcs.start, arcs.stop) + 1
        if not top:
            new.shorter[arcs.start + 1 : arcs.stop + 1] = suffixes
        at = arcs.stop
    return probs


def _totals(counts: _Order, adjusted: Array, key: Array, block: slice, width: int) -> Array:
    """Σ_x a(hx) of the context h of each n-gram of a block: its first and last contexts may reach beyond it."""
    prefix = key // width
    low = int(np.searchsorted(counts.key, prefix[0] * width))
    high = int(np.searchsorted(counts.key, (prefix[-1] + 1) * width))
    whole = counts.key[low:high] // width
    begins = np.flatnonzero(np.append(True, whole[1:] != whole[:-1]))
    sums = np.add.reduceat(adjusted[low:high].astype(np.int64), begins)
    of = np.cumsum(np.append(True, whole[1:] != whole[:-1])) - 1
    totals: Array = sums[of][block.start - low : block.stop - low]
    return totals


def _store(target: Array, contexts: _Order, at: int, values: Array) -> None:
    """Writes the values of the contexts that are kept."""
    kept = values if contexts.rank is None else values[contexts.rank >= 0]
    target[at : at + len(kept)] = kept


def _logs(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        logs: Array = np.maximum(np.log(p), NEVER)
    return logs
