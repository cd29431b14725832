"""Training n-gram models: interpolated modified Kneser–Ney (Chen and Goodman 1999) over token ids.

    p(w | h) = max(a(hw) − D(a(hw)), 0) / Σ_x a(hx) + γ(h) · p(w | h')        p(w) ends in γ(ε) / V

a(g) is the count of g at the highest order, and below it the number of different words seen before g (g that starts a
sentence keeps its count, since nothing stands before it). D takes one of three values per order, from the
numbers n_i of n-grams with a = i:

    Y = n1 / (n1 + 2 n2),   D(i) = i − (i + 1) · Y · n_{i+1} / n_i   for i = 1, 2 and for 3 and more

γ(h) is what the discounts left, so that Σ_w p(w | h) = 1. An n-gram that is pruned leaves its whole count to γ(h).

Counting is sorting: an n-gram's number is its rank among the pairs (number of its prefix, its last word), which fits 64
bits for any vocabulary and any order. Memory is about 60 bytes for each token of text and order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.lm.arpa import NEVER, Arpa, NGramTable
from ilme.lm.ngram import lm_tokens
from ilme.tokens import Tokens

__all__ = ["NGramOptions", "TrainedNGram", "discounted", "discounts_of", "train_ngram", "unigrams", "with_starts"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class NGramOptions:
    """How to train an n-gram model.

    Attributes:
        order: N; a word is predicted from the N − 1 before it.
        prune: One count for each order, unigrams first, not falling; n-grams seen no more often than that are left out.
            The last one stands for all higher orders, so (0, 0, 1) leaves out n-grams of order 3 and more seen once.
            The first is 0: every token keeps its unigram.
    """

    order: int = 4
    prune: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 10:
            raise BadInputError(f"order must be 1 to 10, got {self.order}")
        object.__setattr__(self, "prune", tuple(self.prune))
        if not self.prune or self.prune[0] != 0 or len(self.prune) > self.order:
            raise BadInputError(f"prune starts with 0 and has at most order={self.order} counts, got {self.prune}")
        if any(a > b for a, b in zip(self.prune, self.prune[1:], strict=False)):
            raise BadInputError(f"prune must not fall from one order to the next, got {self.prune}")

    @property
    def thresholds(self) -> list[int]:
        return [self.prune[min(k, len(self.prune) - 1)] for k in range(self.order)]


@dataclass(frozen=True)
class TrainedNGram:
    """A trained model and what there is to know about its training.

    Attributes:
        arpa: The model.
        seen: Different n-grams of each order in the text, the start of sentence counted among the unigrams.
        kept: How many of them are in the model.
        discounts: D1, D2, D3+ of each order.
        fallbacks: Orders whose counts of counts define no discount between 0 and the count: they use 0.5, 1, 1.5.
            Usual for the unigrams of word pieces, where no piece is rare, and for tiny corpora.
    """

    arpa: Arpa
    seen: tuple[int, ...]
    kept: tuple[int, ...]
    discounts: tuple[tuple[float, float, float], ...]
    fallbacks: tuple[int, ...]


@dataclass
class _Counts:
    """The n-grams of one order, ascending by prefix and last word.

    Attributes:
        prefix: Number of the n-gram without its last word, in the order below (M,).
        word: The last word (M,).
        suffix: Number of the n-gram without its first word, in the order below (M,).
        count: How often it was seen (M,).
        first: Whether it starts a sentence (M,).
    """

    prefix: Ints
    word: Ints
    suffix: Ints
    count: Ints
    first: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.word)


def train_ngram(ids: NDArray[np.integer], tokens: Tokens, options: NGramOptions | None = None) -> TrainedNGram:
    """Trains on ids (count,), every sentence followed by the end of sentence.

    Raises:
        BadInputError: No text, ids outside the inventory, or an inventory without an end of sentence.
    """
    options = options or NGramOptions()
    tokens = lm_tokens(tokens)
    stream = with_starts(ids, tokens)
    orders = _count(stream, len(tokens), tokens.eos, options.order)
    adjusted = [_adjusted(orders, k) for k in range(options.order)]
    kept = [c.count > limit for c, limit in zip(orders, options.thresholds, strict=True)]
    kept[0][:] = True
    adjusted[0][len(tokens)] = 0  # the start of sentence is never predicted
    found = [discounts_of(np.bincount(np.minimum(a, 5), minlength=6)) for a in adjusted]
    discounts = [d or FALLBACK for d in found]

    probs = [unigrams(adjusted[0], discounts[0], tokens)]
    gammas: list[Floats] = []
    for k in range(1, options.order):
        p, gamma = _interpolated(orders[k], adjusted[k], kept[k], discounts[k], probs[k - 1], len(orders[k - 1]))
        probs.append(p)
        gammas.append(gamma)
    gammas.append(np.ones(len(orders[-1])))
    return TrainedNGram(
        arpa=_tables(orders, kept, probs, gammas, tokens),
        seen=tuple(int((c.count > 0).sum()) for c in orders),
        kept=tuple(int(k.sum()) for k in kept),
        discounts=tuple(discounts),
        fallbacks=tuple(k for k, d in enumerate(found, 1) if d is None),
    )


def with_starts(ids: NDArray[np.integer], tokens: Tokens) -> Ints:
    """The text with the start symbol V before each sentence; empty sentences are left out."""
    if tokens.eos is None:
        raise BadInputError("an n-gram model needs an inventory with an end of sentence (eos)")
    ids = np.asarray(ids).astype(np.int64)
    if len(ids) == 0:
        raise BadInputError("there is no text to train an n-gram model on")
    if ids.min() < 0 or ids.max() >= len(tokens):
        raise BadInputError(f"ids {ids.min()} … {ids.max()} do not fit an inventory of {len(tokens)} tokens")
    if tokens.sos is not None and tokens.sos != tokens.eos and (ids == tokens.sos).any():
        raise BadInputError(f"the text holds the start symbol, id {tokens.sos}, which is added here")
    if ids[-1] != tokens.eos:
        ids = np.append(ids, tokens.eos)
    end = ids == tokens.eos
    ids = ids[~(end & np.append(True, end[:-1]))]
    if len(ids) == 0:
        raise BadInputError("there is no text to train an n-gram model on: every sentence is empty")
    begins = np.flatnonzero(np.append(True, ids[:-1] == tokens.eos))
    return np.insert(ids, begins, len(tokens))


def _count(stream: Ints, size: int, eos: int | None, order: int) -> list[_Counts]:
    """The n-grams of every order up to N; none reaches over the end of a sentence."""
    width = size + 1
    number = stream  # of the n-gram that starts at each position
    count = np.bincount(stream, minlength=width)
    words = np.arange(width)
    nothing = np.zeros(width, dtype=np.int64)
    orders = [_Counts(nothing, words, nothing, count, words == size)]
    place = np.arange(len(stream))
    for k in range(2, order + 1):
        # A start position stays usable while its n-gram so far does not contain the end of sentence.
        place = place[stream[place + k - 2] != eos]
        key = number[place] * width + stream[place + k - 1]
        unique, inverse = _unique(key)
        suffix = np.empty(len(unique), dtype=np.int64)
        suffix[inverse] = number[place + 1]
        prefix = unique // width
        first = orders[-1].first[prefix]
        orders.append(_Counts(prefix, unique % width, suffix, np.bincount(inverse, minlength=len(unique)), first))
        number = np.full(len(stream), -1, dtype=np.int64)
        number[place] = inverse
    return orders


def _unique(key: Ints) -> tuple[Ints, Ints]:
    """The different keys, ascending, and the rank of each key among them."""
    rank = np.argsort(key)
    ordered = key[rank]
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(key)]
    inverse = np.empty(len(key), dtype=np.int64)
    inverse[rank] = np.cumsum(new) - 1
    return ordered[new], inverse


def _adjusted(orders: list[_Counts], k: int) -> Ints:
    """a(g) of the n-grams of order k + 1: counts at the top, below it the number of different words before g."""
    if k + 1 == len(orders):
        return orders[k].count.copy()
    before = np.bincount(orders[k + 1].suffix, minlength=len(orders[k]))
    return np.where(orders[k].first, orders[k].count, before)


def discounts_of(n: Ints) -> tuple[float, float, float] | None:
    """D1, D2, D3+ from the numbers n_i of n-grams with a = i (n_5: and more); None where they define none."""
    if not (n[1] and n[2] and n[3]):
        return None
    y = n[1] / (n[1] + 2 * n[2])
    d = tuple(float(i - (i + 1) * y * n[i + 1] / n[i]) for i in (1, 2, 3))
    return (d[0], d[1], d[2]) if all(0 <= x <= i for i, x in enumerate(d, 1)) else None


def discounted(adjusted: Ints, discounts: tuple[float, float, float]) -> Floats:
    table = np.array([0.0, *discounts], dtype=np.float64)
    return np.minimum(table[np.minimum(adjusted, 3)], adjusted.astype(np.float64))


def unigrams(adjusted: Ints, discounts: tuple[float, float, float], tokens: Tokens) -> Floats:
    """p(w) of every symbol: discounted, and what is left spread evenly over all V tokens."""
    possible = np.arange(len(tokens) + 1) < len(tokens)
    if tokens.sos is not None and tokens.sos != tokens.eos:
        possible[tokens.sos] = False
    taken = discounted(adjusted, discounts)
    gamma = taken.sum() / adjusted.sum()
    p: Floats = (adjusted - taken) / adjusted.sum() + np.where(possible, gamma / possible.sum(), 0.0)
    return p


def _interpolated(
    counts: _Counts,
    adjusted: Ints,
    kept: NDArray[np.bool_],
    discounts: tuple[float, float, float],
    lower: Floats,
    contexts: int,
) -> tuple[Floats, Floats]:
    """p(w | h) of each n-gram and γ(h) of each context; a context that nothing follows has γ = 1."""
    total = np.bincount(counts.prefix, adjusted, contexts)
    taken = np.where(kept, discounted(adjusted, discounts), adjusted)
    left = np.bincount(counts.prefix, taken, contexts)
    gamma = np.divide(left, total, out=np.ones(contexts), where=total > 0)
    p = (adjusted - taken) / total[counts.prefix] + gamma[counts.prefix] * lower[counts.suffix]
    return p, gamma


def _tables(
    orders: Sequence[_Counts],
    kept: Sequence[NDArray[np.bool_]],
    probs: Sequence[Floats],
    gammas: Sequence[Floats],
    tokens: Tokens,
) -> Arpa:
    """The kept n-grams with their words written out."""
    tables = []
    words = np.arange(len(tokens) + 1)[:, None]
    for k, (c, keep, p, gamma) in enumerate(zip(orders, kept, probs, gammas, strict=True)):
        if k:
            words = np.concatenate([words[c.prefix], c.word[:, None]], 1)
        elif tokens.sos is not None and tokens.sos != tokens.eos:
            keep = keep & (c.word != tokens.sos)
        with np.errstate(divide="ignore"):
            log_prob = np.maximum(np.log(p[keep]), NEVER)
            backoff = np.maximum(np.log(gamma[keep]), NEVER)
        tables.append(NGramTable(words[keep], log_prob, backoff))
    missing = (tokens.sos,) if tokens.sos is not None and tokens.sos != tokens.eos else ()
    unknown = missing[0] if missing else None
    return Arpa(len(tokens), tuple(tables), missing, unknown, tokens.eos)
