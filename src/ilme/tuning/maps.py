"""Pictures of the error surface as numbers: WER over (λ_T, μ), and how error kinds shift with λ_T."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ilme.fusion import FusionWeights
from ilme.tuning.error_surface import CandidateLists
from ilme.tuning.weight_search import WeightSpace

__all__ = ["Balance", "HeatMap", "balance_along_lm", "heat_map"]


@dataclass(frozen=True)
class HeatMap:
    """WER of the n-best lists.

    Attributes:
        lm: The λ_T of each column.
        subtracted: The μ of each row; one row if μ is fixed.
        wer: WER in per cent, one list per row.
        length: The β at which it was drawn.
    """

    lm: tuple[float, ...]
    subtracted: tuple[float, ...]
    wer: tuple[tuple[float, ...], ...]
    length: float

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HeatMap:
        rows = tuple(tuple(row) for row in data["wer"])
        return cls(tuple(data["lm"]), tuple(data["subtracted"]), rows, data["length"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Balance:
    """Errors by kind, in per cent of the reference words, as λ_T grows and μ with it.

    Attributes:
        lm: λ_T
        subtracted: μ = λ_T · μ* / λ_T*, the tuned ratio.
        substitutions: In per cent.
        deletions: In per cent.
        insertions: In per cent.
    """

    lm: tuple[float, ...]
    subtracted: tuple[float, ...]
    substitutions: tuple[float, ...]
    deletions: tuple[float, ...]
    insertions: tuple[float, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Balance:
        return cls(**{name: tuple(values) for name, values in data.items()})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
