"""Which weights to decode dev with next: the lists propose, within the region where they can be believed.

Lists know the hypotheses that earlier decodes kept. Far from every decode they are blind: they cannot see the words
that a search would insert or drop there, so their error surface is too flat and its minimum may lie anywhere. Hence

    region     around the best weights decoded so far; half as wide after a decode that did not help, or that fell
               inside the region rather than on its edge (a trust region)
    errors     half from the merged lists, half from each decode's own, the nearer the more: merged lists know more
               hypotheses, but choose some that a search with these weights would have dropped on the way
    window     over which errors are averaged; twice as wide for every decode still to come: first where the valley is,
               the fine structure last
    ratio      the first step goes beyond what the lists say, but along their ray: μ / λ_T is what lists without
               fusion know best, and a μ that is too large for its λ_T makes the search invent words
    apart      never almost the same weights twice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ilme.tuning.error_surface import Array, CandidateLists, stack_lists
from ilme.tuning.weight_search import Objective, WeightSpace, search_weights

__all__ = ["Proposer", "TriedPoint"]

_DECIMALS = 4  # of a weight: enough for any decode, and the last bits of a processor decide nothing
APART = 0.02  # weights nearer than this to decoded ones give nearly the same transcripts
MERGED = 0.5  # how much the merged lists count against the decodes' own
NEARNESS = 0.2  # the distance of weights over which a decode's own lists lose their say
_EDGE = 0.9  # of the region's radius, from where on a point counts as lying on its edge


@dataclass(frozen=True)
class TriedPoint:
    """Weights that dev was decoded with, and what that cost.

    Attributes:
        vector: (λ_T, μ, β)
        cost: Errors in the search, with the penalty on the size of the weights.
        lists: What this decode kept.
        confirmed: Whether it was decoded with the beam that is tuned for.
    """

    vector: Array
    cost: float
    lists: CandidateLists
    confirmed: bool = True


@dataclass(frozen=True)
class Proposer:
    """Proposes weights to decode with.

    Attributes:
        space: Where weights may lie.
        objective: Penalty, and the smoothing of the last decode.
        step: The first radius of the region.
        decodes: How many decodes there may be in all.
        restarts: Drawn points from which the search on the lists starts as well.
        seed: Of every draw.
    """

    space: WeightSpace
    objective: Objective
    step: float
    decodes: int
    restarts: int
    seed: int

    def next(self, merged: CandidateLists, tried: Sequence[TriedPoint]) -> Array | None:
        """Where to decode next, after at least one decode; None if there is nothing else to try.

        Args:
            merged: The hypotheses of all decodes.
            tried: The decodes, in their order.
        """
        if not (self.space.high > self.space.low).any() and tried[-1].confirmed:
            return None
        centre, radius = region(tried, self.step)
        near = within(self.space, centre, radius)
        left = max(0, self.decodes - len(tried) - 1)
        lists, copies = stack_lists([merged, *(t.lists for t in tried)], [MERGED, *nearness(tried, centre)])
        found = search_weights(
            lists,
            near,
            objective=Objective(self.objective.penalty, self.objective.smoothing * 2**left),
            starts=[t.vector for t in tried],
            restarts=self.restarts,
            seed=self.seed,
            copies=copies,
            avoid=[t.vector for t in tried if t.confirmed],
            apart=APART,
        )
        if not np.isfinite(found.objective):
            return None
        vector = found.vector
        if len(tried) == 1 and left:
            vector = beyond(vector, centre, near)
        return np.asarray(np.clip(np.round(vector, _DECIMALS), self.space.low, self.space.high))


def region(tried: Sequence[TriedPoint], step: float) -> tuple[Array, float]:
    """The best point decoded so far, and how far from it the next may lie (in the largest coordinate)."""
    centre, best, radius = tried[0].vector, tried[0].cost, step
    for point in tried[1:]:
        reached = float(np.abs(point.vector - centre).max())
        better = point.cost < best
        if not (better and reached >= _EDGE * radius):
            radius /= 2
        if better:
            centre, best = point.vector, point.cost
    return centre, radius


def nearness(tried: Sequence[TriedPoint], centre: Array) -> Array:
    """How much each decode's own lists count: exp(−(distance / NEARNESS)² / 2), 1 − MERGED in all."""
    distance = np.array([np.abs(t.vector - centre).max() for t in tried])
    near = np.exp(-0.5 * (distance / NEARNESS) ** 2)
    return np.asarray((1 - MERGED) * near / near.sum())


def within(space: WeightSpace, centre: Array, radius: float) -> WeightSpace:
    """The part of the space within `radius` of `centre`."""
    low = np.clip(centre - radius, space.low, space.high)
    high = np.clip(centre + radius, space.low, space.high)
    ranges = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return WeightSpace(lm=ranges[0], subtracted=ranges[1], length=ranges[2])


def beyond(found: Array, first: Array, near: WeightSpace) -> Array:
    """Up to twice as far from the first decode as the lists' optimum, on the same ray, as `near` allows.

    The lists of a decode without fusion lack the hypotheses that fusion would have found, so their optimum falls short
    of the true one. A decode beyond it brings them, and the optimum is bracketed from both sides.
    """
    direction = found - first
    room = np.where(direction > 0, near.high - first, first - near.low)
    moving = np.abs(direction) > 1e-12
    scale = min([2.0, *(room[moving] / np.abs(direction[moving]))])
    return np.asarray(first + scale * direction)
