"""Fits how sure a word is to a dev set, and says how well it then fits words that the fit has not seen.

    minimise  Σ_w −log P(what became of w) + RIDGE/2 · |(a, b, c) − (0, 1, 0)|²      (`ilme.recogniser.confidence`)

over the words of dev, right or wrong. The ridge is worth a few words: of a small dev set little is believed, and the
share of the n-best list stays what it is. How well it fits is measured on folds of utterances, each with the fit of the
others:

    NCE = (H − CE) / H       CE the mean −log P, H that of the constant P = share of right words: 1 is perfect, 0 is
                             worth nothing, and below 0 does harm
    ECE = Σ_bin n_bin/n · |mean P − share right|          ten bins of P, equally wide
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ilme.evaluation.metrics import NormaliserName, align, normaliser
from ilme.recogniser.confidence import WordConfidence, evidence
from ilme.search.hypothesis import NBest

__all__ = ["FittedConfidence", "calibrate", "ece", "fit", "nce", "which_are_right"]

Array = NDArray[np.float64]
RIDGE = 4.0
PLAIN = np.array([0.0, 1.0, 0.0])
FEWEST = 20  # words of each kind, right and wrong, below which nothing is fitted
FOLDS, STEPS = 5, 50


@dataclass(frozen=True)
class FittedConfidence:
    """A fit, and what it does to words that it has not seen.

    Attributes:
        confidence: The fit; None where dev has too few words, or where the fit is no better on the folds.
        words: How many words were looked at.
        right: How many of them are right.
        before: NCE and ECE of the share as it is.
        after: Those of the fit, on folds.
    """

    confidence: WordConfidence | None
    words: int
    right: int
    before: dict[str, float]
    after: dict[str, float] | None


def calibrate(
    lists: Mapping[str, NBest],
    references: Mapping[str, str],
    normaliser_name: NormaliserName,
    exponent: float = 0.0,
) -> FittedConfidence:
    """The fit to a dev set.

    Args:
        lists: The n-best lists, what is taken first.
        references: The transcripts.
        normaliser_name: Of both.
        exponent: α of the search.
    """
    rows, targets, folds = [], [], []
    for place, (name, nbest) in enumerate(sorted(lists.items())):
        if not nbest or not nbest[0].text.split():
            continue
        right = which_are_right(references[name], nbest[0].text, normaliser_name)
        counted = ~np.isnan(right)
        rows.append(evidence(nbest, exponent)[counted])
        targets.append(right[counted])
        folds.append(np.full(int(counted.sum()), place % FOLDS))
    known, right, fold = (np.concatenate(x) if x else np.zeros(0) for x in (rows, targets, folds))
    words, hits = len(right), int(right.sum())
    plain = WordConfidence()
    before = _told(plain(known), right) if words else {}
    if min(hits, words - hits) < FEWEST:
        return FittedConfidence(None, words, hits, before, None)
    unseen = np.zeros(words)
    for k in range(FOLDS):
        unseen[fold == k] = fit(known[fold != k], right[fold != k])(known[fold == k])
    after = _told(unseen, right)
    return FittedConfidence(fit(known, right) if after["NCE"] > before["NCE"] else None, words, hits, before, after)


def which_are_right(reference: str, text: str, normaliser_name: NormaliserName) -> Array:
    """1 for each word that the reference has at its place, 0 for a wrong one, NaN where nothing is left of it.

    Each written word is normalised by itself: of what it becomes, every part must be right.
    """
    normalise = normaliser(normaliser_name)
    parts = [normalise(word).split() for word in text.split()]
    flat = " ".join(part for word in parts for part in word)
    hits = [edit.kind == "equal" for edit in align(normalise(reference), flat) if edit.kind != "delete"] if flat else []
    found, at = np.full(len(parts), np.nan), 0
    for place, word in enumerate(parts):
        if word:
            found[place] = float(all(hits[at : at + len(word)]))
        at += len(word)
    return found


def fit(known: Array, right: Array) -> WordConfidence:
    """a, b and c, by Newton's method: what is minimised is convex."""
    design = np.concatenate([np.ones((len(known), 1)), known], 1)
    w = PLAIN.copy()
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(design @ w, -30, 30)))
        gradient = design.T @ (p - right) + RIDGE * (w - PLAIN)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + RIDGE * np.eye(3)
        step = np.linalg.solve(curvature, gradient)
        size = float(np.abs(step).max())
        w = w - step / max(1.0, size)  # a step of more than 1 may overshoot
        if size < 1e-9:
            break
    return WordConfidence(*(round(float(x), 6) for x in w))


def nce(p: Array, right: Array) -> float:
    """Normalised cross-entropy; 0 where all words are right, or all wrong, and there is nothing to tell."""
    share = right.mean()
    if not 0 < share < 1:
        return 0.0
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    return float(1 - _cross_entropy(p, right) / entropy)


def ece(p: Array, right: Array, bins: int = 10) -> float:
    """Expected calibration error."""
    which = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(float((p - right)[which == k].sum())) for k in range(bins)]
    return sum(gaps) / len(p)


def _cross_entropy(p: Array, right: Array) -> float:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.where(right > 0, np.log(p), np.log(1 - p)).mean())


def _told(p: Array, right: Array) -> dict[str, float]:
    return {"NCE": round(nce(p, right), 4), "ECE": round(ece(p, right), 4)}
