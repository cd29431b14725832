"""The exact error count of fixed n-best lists as a function of the fusion weights.

Each hypothesis scores linearly in the weights: s_h(w) = asr + λ_T·lm − μ·subtracted + β·length, divided by
(|y| + 1)^α if the search divides. Along a line w + t·d it is the straight line a_h + t·b_h, the
winner of an utterance is the upper envelope of its hypotheses' lines, and the total error is piecewise
constant with breaks where winners change (minimum error rate training, Och 2003). So a line search is exact:
no grid, no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts, NormaliserName, count_each, normaliser
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import NBest

__all__ = ["CandidateLists", "Profile", "as_vector", "as_weights", "build_lists", "possible_winners", "stack_lists"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def as_vector(weights: FusionWeights) -> Array:
    """(λ_T, μ, β)"""
    return np.array([weights.lm, weights.subtracted, weights.length], dtype=float)


def as_weights(vector: Array, share: float = 0.0) -> FusionWeights:
    """Weights of (λ_T, μ, β) and ε, which is nothing where nothing is subtracted."""
    lm, subtracted, length = (float(x) for x in vector)
    return FusionWeights(lm=lm, subtracted=subtracted, length=length, background=share if subtracted else 0.0)


@dataclass(frozen=True)
class Profile:
    """Total error along a line: `errors[i]` holds for t between `edges[i]` and `edges[i + 1]`.

    Attributes:
        edges: (n + 1,) rising.
        errors: (n,) whole numbers, as floats.
    """

    edges: Array
    errors: Array

    def at(self, t: Array, width: float = 0.0) -> Array:
        """The error at each t, averaged over t ± width (Cer, Jurafsky & Manning 2008) if a width is given."""
        if width <= 0:
            place = np.searchsorted(self.edges, t, side="right") - 1
            return self.errors[np.clip(place, 0, len(self.errors) - 1)]
        area = np.concatenate([[0.0], np.cumsum(self.errors * np.diff(self.edges))])
        low = np.maximum(t - width, self.edges[0])
        high = np.minimum(t + width, self.edges[-1])
        at_low, at_high = (np.interp(x, self.edges, area) for x in (low, high))
        return np.asarray((at_high - at_low) / np.maximum(high - low, 1e-12))


@dataclass(frozen=True)
class CandidateLists:
    """n-best lists of U utterances, padded to K hypotheses by repeating the first.

    Attributes:
        ids: The utterances.
        base: (U, K) the score that no weight touches, log P_E2E.
        slopes: (U, K, 3) what λ_T, μ and β multiply: lm, −subtracted, length.
        substitutions: (U, K) of each hypothesis against its reference.
        deletions: (U, K)
        insertions: (U, K)
        words: (U,) length of each reference.
    """

    ids: tuple[str, ...]
    base: Array
    slopes: Array
    substitutions: Counts
    deletions: Counts
    insertions: Counts
    words: Counts

    @cached_property
    def errors(self) -> Counts:
        return self.substitutions + self.deletions + self.insertions

    @property
    def total_words(self) -> int:
        return int(self.words.sum())

    def winners(self, vector: Array) -> NDArray[np.int64]:
        """(U,) the hypothesis each utterance ends with under the weights (λ_T, μ, β)."""
        return np.asarray((self.base + self.slopes @ vector).argmax(axis=1))

    def counts(self, vector: Array) -> ErrorCounts:
        """Errors of all utterances under these weights."""
        won = self.winners(vector)[:, None]
        s, d, i = (
            int(np.take_along_axis(x, won, axis=1).sum()) for x in (self.substitutions, self.deletions, self.insertions)
        )
        return ErrorCounts(self.total_words - s - d, s, d, i)

    def error_at(self, vector: Array, copies: Array | None = None) -> float:
        """The total number of errors; utterance u counts `copies[u]` times."""
        errors = np.take_along_axis(self.errors, self.winners(vector)[:, None], axis=1)[:, 0]
        return float(errors.sum() if copies is None else (errors * copies).sum())

    def along(self, origin: Array, direction: Array, low: float, high: float, copies: Array | None = None) -> Profile:
        """The exact error for every origin + t · direction with low ≤ t ≤ high.

        All utterances walk their envelopes at once: from the winner at `low`, each jumps to the steeper line
        that crosses it first, until none crosses before `high`.
        """
        intercepts = self.base + self.slopes @ origin
        slopes = self.slopes @ direction
        errors = self.errors
        at = np.arange(len(self.ids))
        won = _first_winner(intercepts, slopes, low)
        weight = np.ones(len(at)) if copies is None else copies
        start = float((errors[at, won] * weight).sum())
        jumps: list[Array] = []
        changes: list[Array] = []
        while len(at):
            rise = slopes[at] - slopes[at, won][:, None]
            drop = intercepts[at, won][:, None] - intercepts[at]
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = np.where(rise > 0, drop / rise, np.inf)
            crossing = np.maximum(crossing, low)
            when = crossing.min(axis=1)
            going = when < high
            at, won, when, crossing, rise = at[going], won[going], when[going], crossing[going], rise[going]
            steepest = np.where(crossing <= when[:, None], rise, -np.inf).argmax(axis=1)
            jumps.append(when)
            changes.append((errors[at, steepest] - errors[at, won]) * weight[at])
            won = steepest
        return _profile(start, jumps, changes, low, high)


def stack_lists(parts: Sequence[CandidateLists], weights: Sequence[float]) -> tuple[CandidateLists, Array]:
    """Several lists of the same U utterances as one of n·U utterances, and how much each of these counts (n·U,).

    Its error is Σ_i weights_i · errors of part i, each part choosing among its own hypotheses.
    """
    width = max(p.base.shape[1] for p in parts)

    def joined(field: str) -> NDArray[Any]:
        arrays = [getattr(p, field) for p in parts]
        return np.concatenate([np.concatenate([x, *[x[:, :1]] * (width - x.shape[1])], axis=1) for x in arrays])

    stacked = CandidateLists(
        ids=tuple(i for p in parts for i in p.ids),
        base=joined("base"),
        slopes=joined("slopes"),
        substitutions=joined("substitutions"),
        deletions=joined("deletions"),
        insertions=joined("insertions"),
        words=np.concatenate([p.words for p in parts]),
    )
    return stacked, np.concatenate([np.full(len(p.ids), w) for p, w in zip(parts, weights, strict=True)])


def _first_winner(intercepts: Array, slopes: Array, low: float) -> NDArray[np.int64]:
    """The winner just right of `low`: the highest line, and of equal ones the steepest."""
    scores = intercepts + low * slopes
    best = scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(scores == best, slopes, -np.inf).argmax(axis=1))


def _profile(start: float, jumps: list[Array], changes: list[Array], low: float, high: float) -> Profile:
    when = np.concatenate([*jumps, np.empty(0)])
    change = np.concatenate([*changes, np.empty(0)])
    places, where = np.unique(when, return_inverse=True)
    steps = np.zeros(len(places))
    np.add.at(steps, where, change)
    errors = start + np.concatenate([[0.0], np.cumsum(steps)])
    edges = np.concatenate([[low], places, [high]])
    kept = np.diff(edges) > 0
    return Profile(np.concatenate([edges[:-1][kept], [high]]), errors[kept])


def build_lists(
    lists: Mapping[str, NBest],
    references: Mapping[str, str],
    *,
    normaliser_name: NormaliserName = "none",
    length_exponent: float = 0.0,
    within: tuple[Array, Array] | None = None,
) -> CandidateLists:
    """Arrays of the n-best lists, each hypothesis with its errors against the reference.

    Args:
        lists: n-best lists with text and every component score, by utterance id.
        references: The transcripts, by utterance id; the ids are those of `lists`.
        normaliser_name: Applied to both sides before errors are counted.
        length_exponent: α if the search ranks by fused score / (|y| + 1)^α, else 0.
        within: The least and the greatest (λ_T, μ, β) that will be asked for. Hypotheses that cannot win
            there are left out: nothing changes but the time it takes.
    """
    _check(lists, references)
    normalise = normaliser(normaliser_name)
    ids = tuple(references)
    chosen = []
    for i in ids:
        nbest = list(lists[i])
        if within is not None:
            keep = possible_winners(_linear(nbest, length_exponent), *within)
            nbest = [h for h, kept in zip(nbest, keep, strict=True) if kept]
        chosen.append(nbest)
    errors = _error_counts([normalise(references[i]) for i in ids], chosen, normalise)
    words = np.array([row[0].words for row in errors], dtype=np.int64)
    if words.sum() == 0:
        raise BadInputError("the references hold no words after normalisation: nothing to tune on")
    width = max(map(len, chosen))

    def padded(values: Sequence[Sequence[int]]) -> Counts:
        return np.array([[*row, *[row[0]] * (width - len(row))] for row in values], dtype=np.int64)

    linear = np.stack(
        [
            np.concatenate([rows, np.repeat(rows[:1], width - len(rows), axis=0)])
            for rows in (_linear(nbest, length_exponent) for nbest in chosen)
        ]
    )
    return CandidateLists(
        ids=ids,
        base=np.ascontiguousarray(linear[..., 0]),
        slopes=np.ascontiguousarray(linear[..., 1:]),
        substitutions=padded([[c.substitutions for c in row] for row in errors]),
        deletions=padded([[c.deletions for c in row] for row in errors]),
        insertions=padded([[c.insertions for c in row] for row in errors]),
        words=words,
    )


def possible_winners(linear: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Which of K hypotheses (K, 4: base, then slopes) could have the best score for weights between low and high.

    Scores are linear in the weights, so one that is no better than another at every corner of the box is no
    better anywhere inside. Of equal ones the first stays.
    """
    corners = np.array(
        [[1.0, x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]
    )
    scores = linear @ np.unique(corners, axis=0).T
    no_worse = (scores[None, :, :] >= scores[:, None, :]).all(axis=2)  # [h, g]: g is no worse than h
    earlier = np.tri(len(linear), k=-1, dtype=bool)  # [h, g]: g stands before h
    beaten = no_worse & (~no_worse.T | earlier)
    return np.asarray(~beaten.any(axis=1))


def _linear(nbest: NBest, exponent: float) -> Array:
    """(K, 4): asr, lm, −subtracted, length of each hypothesis, divided as the search divides."""
    rows = np.array([[h.scores.asr, h.scores.lm, -h.scores.subtracted, h.scores.length] for h in nbest], dtype=float)
    if exponent:
        rows = rows / (rows[:, 3:] + 1.0) ** exponent
    return rows


def _error_counts(
    references: Sequence[str], chosen: Sequence[NBest], normalise: Callable[[str], str]
) -> list[list[ErrorCounts]]:
    """Errors of every hypothesis, all counted in one call."""
    left = [r for r, nbest in zip(references, chosen, strict=True) for _ in nbest]
    right = [normalise(h.text) for nbest in chosen for h in nbest]
    counts = iter(count_each(left, right))
    return [[next(counts) for _ in nbest] for nbest in chosen]


def _check(lists: Mapping[str, NBest], references: Mapping[str, str]) -> None:
    if not references:
        raise BadInputError("there are no references to tune on")
    for i in references:
        if not lists.get(i):
            raise BadInputError(f"utterance {i!r} has a reference but no hypothesis; was it decoded?")
        for h in lists[i]:
            values = (h.scores.asr, h.scores.lm, h.scores.subtracted, h.scores.length)
            if not np.isfinite(values).all():
                raise BadInputError(
                    f"utterance {i!r} has a hypothesis with scores {values}: every component must be a "
                    "finite number; check the scorer that gave it"
                )
    unknown = next((i for i in lists if i not in references), None)
    if unknown is not None:
        raise BadInputError(f"utterance {unknown!r} was decoded but has no reference")
