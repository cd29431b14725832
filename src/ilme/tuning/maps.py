"""Pictures of the error surface as numbers: WER over (λ_T, μ), and how error kinds shift with λ_T."""

from __future__ import annotations

import numpy as np

from ilme.evaluation.tuning_result import Balance, HeatMap
from ilme.fusion import FusionWeights
from ilme.tuning.error_surface import CandidateLists
from ilme.tuning.weight_search import WeightSpace

__all__ = ["balance_along_lm", "heat_map"]


def heat_map(lists: CandidateLists, space: WeightSpace, *, beta: float, points: int = 21) -> HeatMap:
    """WER over `points` × `points` weights of the space; a fixed weight has one point."""
    lm = _points(space.lm, points)
    subtracted = _points(space.subtracted, points)
    wer = tuple(tuple(round(lists.counts(np.array([x, y, beta])).rate, 4) for x in lm) for y in subtracted)
    return HeatMap(lm, subtracted, wer, beta)


def balance_along_lm(lists: CandidateLists, space: WeightSpace, chosen: FusionWeights, *, points: int = 41) -> Balance:
    """Substitutions, deletions and insertions from λ_T = its least to its most, with μ in the tuned ratio."""
    lm = _points(space.lm, points)
    ratio = chosen.subtracted / chosen.lm if chosen.lm else 0.0
    subtracted = tuple(round(ratio * x, 6) for x in lm)
    counts = [lists.counts(np.array([x, y, chosen.length])) for x, y in zip(lm, subtracted, strict=True)]
    per_cent = 100.0 / lists.total_words
    return Balance(
        lm=lm,
        subtracted=subtracted,
        substitutions=tuple(round(c.substitutions * per_cent, 4) for c in counts),
        deletions=tuple(round(c.deletions * per_cent, 4) for c in counts),
        insertions=tuple(round(c.insertions * per_cent, 4) for c in counts),
    )


def _points(ends: tuple[float, float], points: int) -> tuple[float, ...]:
    low, high = ends
    return tuple(round(float(x), 6) for x in (np.linspace(low, high, points) if high > low else [low]))
