"""Is a difference in WER more than chance? Intervals and paired tests over whole speakers.

Utterances of one speaker share an accent and a microphone, so their errors are not independent: the bootstrap
draws speakers, not utterances. Bisani & Ney (2004) describe the bootstrap, Gillick & Cox (1989) the matched-pairs test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts, Measurement, align

__all__ = [
    "Comparison",
    "Interval",
    "bootstrap_interval",
    "compare",
    "compare_gains",
    "mapsswe",
    "paired_bootstrap",
    "segment_errors",
    "sign_test",
]

REPLICATES = 10_000
Pair = tuple[Measurement, Measurement]  # a system, and what it is set against
_DRAWS_AT_ONCE = 2_000_000  # bounds memory: replicates are drawn in chunks of this many indices


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of an error rate in per cent.

    Attributes:
        low: 2.5 % quantile of the bootstrap.
        high: 97.5 % quantile.
        groups: How many independent groups (speakers) were resampled.
    """

    low: float
    high: float
    groups: int


@dataclass(frozen=True)
class Comparison:
    """System a against system b on the same utterances.

    Attributes:
        a: Name of the first system.
        b: Name of the second.
        difference: WER(b) − WER(a) in points; positive means that a is better.
        relative: That difference in per cent of WER(b).
        interval: 95 % interval of the difference.
        p_bootstrap: Two-sided p-value of the paired bootstrap over speakers.
        p_mapsswe: Two-sided p-value of the matched-pairs sentence-segment test; None for characters.
    """

    a: str
    b: str
    difference: float
    relative: float
    interval: tuple[float, float]
    p_bootstrap: float
    p_mapsswe: float | None


def bootstrap_interval(measured: Measurement, *, replicates: int = REPLICATES, seed: int = 0) -> Interval:
    """Percentile interval of the error rate: speakers are drawn with replacement, errors and words summed."""
    groups = _by_speaker([measured])
    rates = _resampled(groups[:, :1], groups[:, 1], replicates, seed)[:, 0]
    low, high = np.quantile(rates, [0.025, 0.975])
    return Interval(float(low), float(high), len(groups))


def paired_bootstrap(
    a: Measurement, b: Measurement, *, replicates: int = REPLICATES, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Two-sided p-value of WER(b) − WER(a) ≠ 0, and its 95 % interval; both systems see the same draws.

    p = 2 · min(P(Δ* ≤ 0), P(Δ* ≥ 0)), with one added to each count so that it is never 0.
    """
    _check_same_references(a, b)
    groups = _by_speaker([a, b])
    rates = _resampled(groups[:, :2], groups[:, 2], replicates, seed)
    delta = rates[:, 1] - rates[:, 0]
    tail = min(int((delta <= 0).sum()), int((delta >= 0).sum()))
    low, high = np.quantile(delta, [0.025, 0.975])
    return min(1.0, 2 * (tail + 1) / (replicates + 1)), (float(low), float(high))


def sign_test(better: int, worse: int) -> float:
    """P of at least so many better ones among those that differ, if either is as likely; 1 if none differs."""
    n = better + worse
    return float(sum(math.comb(n, k) for k in range(better, n + 1)) / 2**n)


def mapsswe(a: Measurement, b: Measurement) -> tuple[float, float]:
    """The matched-pairs test: W = mean(Z) / (σ(Z) / √n), and its two-sided p-value under N(0, 1).

    Z_i = errors of b − errors of a in segment i (see `segment_errors`), so W > 0 means that a is better.
    """
    _check_same_references(a, b)
    if a.unit != "word":
        raise BadInputError("MAPSSWE compares words; measure both systems with unit='word'")
    pairs = [
        pair
        for left, right in zip(a.utterances, b.utterances, strict=True)
        for pair in segment_errors(left.reference, left.hypothesis, right.hypothesis)
    ]
    z = np.array([errors_b - errors_a for errors_a, errors_b in pairs], dtype=float)
    if len(z) < 2 or not z.any():
        return 0.0, 1.0
    spread = z.std(ddof=1)
    if spread == 0:  # every segment differs by the same amount: as certain as this many segments can be
        return math.copysign(math.inf, z.mean()), 0.0
    w = float(z.mean() / (spread / math.sqrt(len(z))))
    return w, math.erfc(abs(w) / math.sqrt(2))


def segment_errors(reference: str, a: str, b: str, good_words: int = 2) -> list[tuple[int, int]]:
    """Errors (of a, of b) in each segment of one utterance in which at least one of the two errs.

    A segment ends where both systems have `good_words` words in a row right, or where the utterance ends.
    """
    errors_a, errors_b = _errors_by_slot(reference, a), _errors_by_slot(reference, b)
    words = len(reference.split())
    segments: list[tuple[int, int]] = []
    at_a = at_b = good = 0
    open_segment = False

    def add(slot: int) -> None:
        nonlocal at_a, at_b, good, open_segment
        wrong_a, wrong_b = errors_a[slot], errors_b[slot]
        if wrong_a or wrong_b:
            at_a, at_b, good, open_segment = at_a + wrong_a, at_b + wrong_b, 0, True
        elif slot % 2:  # a word, not the gap between two
            good += 1
        if open_segment and good >= good_words:
            segments.append((at_a, at_b))
            at_a = at_b = 0
            open_segment = False

    for slot in range(2 * words + 1):
        add(slot)
    if open_segment:
        segments.append((at_a, at_b))
    return segments


def _errors_by_slot(reference: str, hypothesis: str) -> list[int]:
    """Errors at the gap before word 0, at word 0, at the gap before word 1, …: 2N + 1 slots."""
    slots = [0] * (2 * len(reference.split()) + 1)
    word = 0
    for edit in align(reference, hypothesis):
        if edit.kind == "insert":
            slots[2 * word] += 1
        else:
            slots[2 * word + 1] += edit.kind != "equal"
            word += 1
    return slots


def compare(
    name_a: str, a: Measurement, name_b: str, b: Measurement, *, replicates: int = REPLICATES, seed: int = 0
) -> Comparison:
    """Every paired statistic of two systems on the same references."""
    p, interval = paired_bootstrap(a, b, replicates=replicates, seed=seed)
    difference = b.rate - a.rate
    return Comparison(
        a=name_a,
        b=name_b,
        difference=difference,
        relative=_reduction(a, b),
        interval=interval,
        p_bootstrap=p,
        p_mapsswe=mapsswe(a, b)[1] if a.unit == "word" else None,
    )


def compare_gains(first: Pair, second: Pair, *, replicates: int = REPLICATES, seed: int = 0) -> tuple[float, float]:
    """How many points more the first pair's relative gain is than the second's, and the two-sided p-value of that.

    A pair is (a, b), and its gain 100 · (errors of b − errors of a) / errors of b. Pairs on the same references see the
    same draws of speakers; pairs on different ones are drawn independently.
    """
    same = [u.id for u in first[0].utterances] == [u.id for u in second[0].utterances]
    drawn = []
    for k, (a, b) in enumerate((first, second)):
        _check_same_references(a, b)
        groups = _by_speaker([a, b])
        rates = _resampled(groups[:, :2], groups[:, 2], replicates, seed + (0 if same else k))
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn.append(np.nan_to_num(100.0 * (rates[:, 1] - rates[:, 0]) / rates[:, 1]))
    size = min(map(len, drawn))  # a draw without words has no rate
    delta = drawn[0][:size] - drawn[1][:size]
    tail = min(int((delta <= 0).sum()), int((delta >= 0).sum()))
    return _reduction(*first) - _reduction(*second), min(1.0, 2 * (tail + 1) / (size + 1))


def _reduction(a: Measurement, b: Measurement) -> float:
    """By how many per cent a makes fewer errors than b: counted, not from rates that were rounded."""
    return 100.0 * (b.total.errors - a.total.errors) / b.total.errors if b.total.errors else 0.0


def _by_speaker(systems: Sequence[Measurement]) -> NDArray[np.float64]:
    """One row per speaker: the errors of each system, then the words of the reference."""
    per_system = [m.by_speaker() for m in systems]
    empty = ErrorCounts()
    return np.array(
        [
            [*(groups.get(speaker, empty).errors for groups in per_system), counts.words]
            for speaker, counts in per_system[0].items()
        ],
        dtype=float,
    )


def _resampled(
    errors: NDArray[np.float64], words: NDArray[np.float64], replicates: int, seed: int
) -> NDArray[np.float64]:
    """Error rates in per cent (replicates, systems) of `replicates` draws of as many groups as there are."""
    if words.sum() == 0:
        raise BadInputError("the references hold no words, so there is nothing to resample")
    if replicates < 1:
        raise BadInputError(f"the bootstrap needs at least one replicate, got {replicates}")
    generator = np.random.default_rng(seed)
    groups = len(words)
    out = np.empty((replicates, errors.shape[1]))
    step = max(1, _DRAWS_AT_ONCE // groups)
    for begin in range(0, replicates, step):
        end = min(begin + step, replicates)
        drawn = generator.integers(groups, size=(end - begin, groups))
        total = words[drawn].sum(axis=1)
        total[total == 0] = np.nan  # only empty references were drawn: no rate
        for system in range(errors.shape[1]):
            out[begin:end, system] = 100.0 * errors[drawn, system].sum(axis=1) / total
    return out[~np.isnan(out).any(axis=1)]


def _check_same_references(a: Measurement, b: Measurement) -> None:
    if (a.unit, a.normaliser) != (b.unit, b.normaliser):
        raise BadInputError(
            f"one system was measured in {a.unit}s with normaliser {a.normaliser!r}, the other in {b.unit}s "
            f"with {b.normaliser!r}; measure both alike"
        )
    if [(u.id, u.reference, u.speaker) for u in a.utterances] != [(u.id, u.reference, u.speaker) for u in b.utterances]:
        raise BadInputError(
            "a paired test needs the same utterances and references, in the same order, in both systems"
        )
