"""Finds the fusion weights with the fewest errors on fixed n-best lists: exact line searches, with restarts.

    objective(w) = errors(w), averaged over w ± smoothing, + penalty · N / 100 · (λ_T + μ + |β|) + prior(w)
    prior(w)     = E₀ · |(w − w₀) / s|²

N is the number of reference words, so the penalty is in points of WER per unit of weight. The prior is what is known of
the weights before any dev speech was heard, as a number of errors: it decides where dev is small, and is lost in the
errors where dev is large (the maximum a posteriori, errors taken as a log-likelihood).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.evaluation.tuning_result import Method
from ilme.tuning.error_surface import Array, CandidateLists

__all__ = [
    "Method",
    "Optimum",
    "Prior",
    "Surcharge",
    "WeightObjective",
    "WeightSpace",
    "no_surcharge",
    "search_weights",
]

Surcharge = Callable[[Array], Array]  # points (n, 3) → errors (n,) that the lists do not know of

_MAX_ROUNDS = 30
_SCREENED = 16  # points drawn for each restart
SPREAD = np.array([0.25, 0.25, 0.75])  # of the prior, in λ_T, μ and β
_INSIDE = 0.005  # how far inside an interval of equal error a weight is put, so that rounding cannot leave it


@dataclass(frozen=True)
class WeightSpace:
    """The range of each weight; a range of one point fixes it.

    Attributes:
        lm: Range of λ_T.
        subtracted: Range of μ.
        length: Range of β; the same for every method that is compared.
    """

    lm: tuple[float, float] = (0.0, 1.0)
    subtracted: tuple[float, float] = (0.0, 1.0)
    length: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("lm", "subtracted", "length"):
            low, high = getattr(self, name)
            if not (np.isfinite([low, high]).all() and low <= high):
                raise BadInputError(f"the range of {name} must be (low, high) with low ≤ high, got {(low, high)}")
            if low < 0 and name != "length":
                raise BadInputError(f"the range of {name} starts at {low}: weights are never negative")

    def restricted(self, method: Method) -> WeightSpace:
        """This space with the weights that `method` does not have fixed at 0."""
        if method not in get_args(Method):
            raise BadInputError(f"no method {method!r}; choose one of {', '.join(get_args(Method))}")
        none = (0.0, 0.0)
        return WeightSpace(
            lm=none if method == "BS" else self.lm,
            subtracted=none if method in ("BS", "SF") else self.subtracted,
            length=self.length,
        )

    @property
    def low(self) -> Array:
        return np.array([self.lm[0], self.subtracted[0], self.length[0]], dtype=float)

    @property
    def high(self) -> Array:
        return np.array([self.lm[1], self.subtracted[1], self.length[1]], dtype=float)

    @property
    def smallest(self) -> Array:
        """The point nearest to no fusion at all."""
        return np.clip(np.zeros(3), self.low, self.high)


@dataclass(frozen=True)
class Prior:
    """Where weights are expected before dev has spoken.

    Attributes:
        lm: λ_T of w₀.
        subtracted: μ of w₀.
        length: β of w₀.
        errors: E₀, what weights that are SPREAD away from w₀ cost, in errors; 0 expects nothing.
    """

    lm: float = 0.0
    subtracted: float = 0.0
    length: float = 0.0
    errors: float = 0.0

    def __post_init__(self) -> None:
        if not np.isfinite([self.lm, self.subtracted, self.length]).all() or not 0 <= self.errors < np.inf:
            raise BadInputError(f"a prior has finite weights and errors of at least 0, got {self}")

    @property
    def centre(self) -> Array:
        """w₀"""
        return np.array([self.lm, self.subtracted, self.length], dtype=float)

    def cost(self, points: Array) -> Array:
        """The prior at points (n, 3), in errors (n,)."""
        return np.asarray(self.errors * (((points - self.centre) / SPREAD) ** 2).sum(axis=1))


@dataclass(frozen=True)
class WeightObjective:
    """What is minimised.

    Attributes:
        penalty: Points of WER that one unit of weight costs.
        smoothing: Half the window over which errors are averaged along each line.
        prior: What is known before.
    """

    penalty: float = 0.0
    smoothing: float = 0.0
    prior: Prior = Prior()

    def __post_init__(self) -> None:
        for name in ("penalty", "smoothing"):
            if not 0 <= getattr(self, name) < np.inf:
                raise BadInputError(f"{name} must be a number ≥ 0, got {getattr(self, name)}")

    def beside(self, points: Array, words: float) -> Array:
        """What points (n, 3) cost beside their errors on so many words (n,)."""
        return np.asarray(self.penalty * words / 100 * np.abs(points).sum(axis=1) + self.prior.cost(points))


PLAIN = WeightObjective()


def no_surcharge(points: Array) -> Array:
    """The lists know of every error."""
    return np.zeros(len(points))


@dataclass(frozen=True)
class Optimum:
    """The best point found.

    Attributes:
        vector: (λ_T, μ, β)
        objective: Errors, with penalty and smoothing.
    """

    vector: Array
    objective: float

    @property
    def key(self) -> tuple[float, float]:
        """Fewer errors first; then smaller weights."""
        return round(self.objective, 6), float(np.abs(self.vector).sum())


@dataclass
class _Search:
    """One set of lists, one space, one objective."""

    lists: CandidateLists
    low: Array
    high: Array
    objective: WeightObjective
    copies: Array | None
    avoid: Array = field(default_factory=lambda: np.empty((0, 3)))
    apart: float = 0.0
    surcharge: Surcharge = no_surcharge
    words: float = field(init=False)

    def __post_init__(self) -> None:
        words = self.lists.words if self.copies is None else self.lists.words * self.copies
        self.words = float(words.sum())

    @property
    def axes(self) -> list[Array]:
        """Unit vectors of the weights that are free."""
        return [np.eye(3)[k] for k in range(3) if self.high[k] > self.low[k]]

    def allowed(self, points: Array) -> NDArray[np.bool_]:
        """Which of the points (n, 3) keep their distance from every point to avoid."""
        distance = np.abs(points[:, None, :] - self.avoid[None, :, :]).max(axis=2)
        return np.asarray((distance >= self.apart).all(axis=1))

    def value(self, vector: Array) -> Optimum:
        """The objective at one point; smoothed along every free axis; infinite where it may not lie."""
        if not self.allowed(vector[None])[0]:
            return Optimum(vector, np.inf)
        width = self.objective.smoothing
        if width and self.axes:
            here = np.zeros(1)
            means = []
            for axis in self.axes:
                low, high = self._range(vector, axis)
                profile = self.lists.along(vector, axis, max(low, -width), min(high, width), self.copies)
                means.append(profile.at(here, width)[0])
            errors = float(np.mean(means))
        else:
            errors = self.lists.error_at(vector, self.copies)
        errors += float(self.surcharge(vector[None])[0])
        return Optimum(vector, errors + float(self.objective.beside(vector[None], self.words)[0]))

    def best_on_line(self, origin: Array, direction: Array) -> Array:
        """The point of the line with the smallest objective; of equal ones that with the smallest weights."""
        low, high = self._range(origin, direction)
        if high - low < 1e-9:
            return origin
        profile = self.lists.along(origin, direction, low, high, self.copies)
        starts, ends = profile.edges[:-1], profile.edges[1:]
        inside = np.minimum((ends - starts) / 2, _INSIDE)
        moving = np.abs(direction) > 1e-12
        to_zero = -origin[moving] / direction[moving]
        steps = direction / SPREAD
        expected = [float(((self.objective.prior.centre - origin) / SPREAD) @ steps / (steps @ steps))]
        edges = self._edges(origin, direction)
        t = np.concatenate([starts + inside, ends - inside, [low, high], to_zero, expected, edges])
        t = t[(t >= low) & (t <= high)]
        points = np.clip(origin + t[:, None] * direction, self.low, self.high)
        size = np.abs(points).sum(axis=1)
        errors = profile.at(t, self.objective.smoothing) + self.objective.beside(points, self.words)
        errors = np.where(self.allowed(points), errors + self.surcharge(points), np.inf)
        return np.asarray(points[np.lexsort((size, np.round(errors, 6)))[0]])

    def descend(self, start: Array, directions: list[Array]) -> Optimum:
        """Line searches along every direction in turn until none helps."""
        best = self.value(start)
        for _ in range(_MAX_ROUNDS):
            before = best.key
            for direction in directions:
                point = self.best_on_line(best.vector, direction)
                if np.abs(point - best.vector).max() < 1e-12:
                    continue
                found = self.value(point)
                if found.key < best.key:
                    best = found
            if best.key == before:
                return best
        return best

    def _edges(self, origin: Array, direction: Array) -> Array:
        """The t at which origin + t · direction is just far enough from a point to avoid, in one coordinate."""
        moving = np.abs(direction) > 1e-12
        gaps = (self.avoid[:, moving] - origin[moving])[None] + 1.001 * self.apart * np.array([-1.0, 1.0])[
            :, None, None
        ]
        return np.asarray((gaps / direction[moving]).ravel())

    def _range(self, origin: Array, direction: Array) -> tuple[float, float]:
        """The t for which origin + t · direction stays in the space."""
        low, high = -np.inf, np.inf
        for k in range(3):
            if abs(direction[k]) > 1e-12:
                ends = sorted(((self.low[k] - origin[k]) / direction[k], (self.high[k] - origin[k]) / direction[k]))
                low, high = max(low, ends[0]), min(high, ends[1])
        return float(low), float(high)


def search_weights(
    lists: CandidateLists,
    space: WeightSpace,
    *,
    objective: WeightObjective = PLAIN,
    starts: Iterable[Array] = (),
    restarts: int = 4,
    seed: int = 0,
    copies: Array | None = None,
    avoid: Sequence[Array] = (),
    apart: float = 0.0,
    surcharge: Surcharge = no_surcharge,
) -> Optimum:
    """The weights in `space` with the smallest objective on `lists`; ties break toward smaller weights.

    Descends from the smallest weights of the space, from every given start, and from the best of many drawn points,
    along the axes, the diagonals of λ_T and μ, and drawn directions. The seed decides all draws.

    Args:
        lists: The n-best lists.
        space: Where to search.
        objective: Penalty and smoothing.
        starts: Points (λ_T, μ, β) to descend from as well.
        restarts: How many drawn points to descend from, the best of 16 times as many.
        seed: Seed of the draws.
        copies: (U,) how often each utterance counts; once if not given.
        avoid: Points that the optimum must keep away from; its objective is infinite if it cannot.
        apart: How far, in the largest coordinate.
        surcharge: Errors to add at a point, beside those of the lists.
    """
    shunned = np.array(avoid).reshape(-1, 3)
    search = _Search(lists, space.low, space.high, objective, copies, shunned, apart, surcharge)
    if not search.axes:
        return search.value(space.smallest)
    generator = np.random.default_rng(seed)
    free = (space.high > space.low).astype(float)
    diagonals = [np.array(d) * free for d in ((1.0, 1.0, 0.0), (1.0, 0.5, 0.0), (1.0, 0.0, 1.0))]
    drawn = [generator.normal(size=3) * free for _ in range(3)]
    directions = [*search.axes, *(d for d in (*diagonals, *drawn) if np.abs(d).sum() > 0)]
    points = [space.smallest, *(np.clip(s, space.low, space.high) for s in starts)]
    drawn_points = [space.low + generator.random(3) * (space.high - space.low) for _ in range(_SCREENED * restarts)]
    points += sorted(drawn_points, key=lambda p: lists.error_at(p, copies))[:restarts]
    return min((search.descend(p, directions) for p in points), key=lambda o: (o.key, tuple(o.vector)))
