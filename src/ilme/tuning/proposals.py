"""Which weights to decode dev with next: the lists propose, within the region where they can be believed.

Lists know the hypotheses that earlier decodes kept. Far from every decode they are blind: they cannot see the words
that a search would insert or drop there, so their error surface is too flat and its minimum may lie anywhere. Hence

    region     around the best weights decoded so far; half as wide after a decode that did not help, or that fell
               inside the region rather than on its edge; twice as wide, up to the first width, after one on the edge
               that helped (a trust region)
    trust      a decode that makes far more errors than the best before it has overreached. It kept cut and invented
               hypotheses that no search with smaller weights would find, yet whose scores beat the right ones there:
               merged, they raise the errors of every weight between. So its lists are left out; instead the errors that
               it measured beyond what the others foresaw are added around it, less and less toward the best point;
               and the next point lies no more than half way to it: what was measured closes in on the optimum
    errors     half from the merged lists, half from each decode's own, the nearer the more: merged lists know more
               hypotheses, but choose some that a search with these weights would have dropped on the way
    window     over which errors are averaged; twice as wide for each of up to three decodes still to come: first where
               the valley is, the fine structure last
    ratio      the first step goes beyond what the lists say, but along their ray: μ / λ_T is what lists without
               fusion know best, and a μ that is too large for its λ_T makes the search invent words
    apart      never almost the same weights twice
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ilme.tuning.error_surface import Array, CandidateLists, stack_lists
from ilme.tuning.weight_search import Optimum, Surcharge, WeightObjective, WeightSpace, search_weights

__all__ = ["APART", "Proposer", "TriedPoint", "overreached", "overreaches", "room", "within"]

_DECIMALS = 4  # of a weight: enough for any decode, and the last bits of a processor decide nothing
APART = 0.02  # weights nearer than this to decoded ones give nearly the same transcripts
MERGED = 0.5  # how much the merged lists count against the decodes' own
_LEAST = 2 * APART  # radius of the region: room for another point
NEARNESS = 0.2  # the distance of weights over which a decode's own lists lose their say
TOO_MANY = 0.1  # share of the best decode's errors by which another must exceed them to have overreached
LATE = 3  # the power with which unforeseen errors grow toward a decode that overreached: little at first, then fast
WIDEST = 3  # decodes still to come that widen the window: wider than the region, it would show nothing
SCALE = np.array([1.0, 1.0, 3.0])  # of steps in λ_T, μ and β: a label costs some 3 nats in an LM of word pieces
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
        seed: Seed of every draw.
    """

    space: WeightSpace
    objective: WeightObjective
    step: float
    decodes: int
    restarts: int
    seed: int

    def propose(self, merged: CandidateLists, tried: Sequence[TriedPoint]) -> Optimum | None:
        """Where to decode next, after at least one decode, and the errors that the lists promise there.

        None if there is nothing else to try.

        Args:
            merged: The hypotheses of all decodes that did not overreach.
            tried: The decodes, in their order.
        """
        if not (self.space.high > self.space.low).any() and tried[-1].confirmed:
            return None
        centre, radius = region(tried, self.step)
        near = within(self.space, centre, radius)
        left = max(0, self.decodes - len(tried) - 1)
        outcomes = list(zip(tried, overreached(tried), strict=True))
        trusted = [t for t, failed in outcomes if not failed]
        lists, copies = stack_lists([merged, *(t.lists for t in trusted)], [MERGED, *nearness(trusted, centre)])
        unforeseen = {
            tuple(t.vector): t.cost - self._beside(t.vector, merged) - lists.error_at(t.vector, copies)
            for t, failed in outcomes
            if failed
        }
        surcharge = rising_to(unforeseen, centre)
        found = search_weights(
            lists,
            near,
            objective=replace(self.objective, smoothing=self.objective.smoothing * 2 ** min(left, WIDEST)),
            starts=[*(t.vector for t in tried), self.objective.prior.centre],
            restarts=self.restarts,
            seed=self.seed,
            copies=copies,
            surcharge=surcharge,
            avoid=[t.vector for t in tried if t.confirmed],
            apart=APART,
        )
        if not np.isfinite(found.objective):
            return None
        vector = found.vector
        if len(tried) == 1 and left:  # what is expected is measured, so that it can be chosen
            expected = self.objective.prior
            vector = expected.centre if expected.errors else beyond(vector, centre, near)
        rounded = np.asarray(np.clip(np.round(vector, _DECIMALS), self.space.low, self.space.high))
        return Optimum(rounded, found.objective)

    def _beside(self, vector: Array, lists: CandidateLists) -> float:
        return float(self.objective.beside(vector[None], lists.total_words)[0])


def overreaches(cost: float, best: float) -> bool:
    """Whether a decode makes far more errors than the best before it: cost > best + max(TOO_MANY · best, √best).

    √best is about what chance does to a count of errors, which matters on small sets only.
    """
    return cost > best + max(TOO_MANY * best, math.sqrt(max(best, 1.0)))


def overreached(tried: Sequence[TriedPoint]) -> list[bool]:
    """Which decodes overreached, each against the best before it; the first never did."""
    costs = [t.cost for t in tried]
    return [k > 0 and overreaches(cost, min(costs[:k])) for k, cost in enumerate(costs)]


def region(tried: Sequence[TriedPoint], step: float) -> tuple[Array, float]:
    """The best point decoded so far, and how far from it the next may lie."""
    centre, best, radius = tried[0].vector, tried[0].cost, step
    failed: list[Array] = []
    for point, bad in zip(tried[1:], overreached(tried)[1:], strict=True):
        on_edge = _distance(point.vector, centre) >= _EDGE * radius
        better = point.cost < best
        radius = min(2 * radius, step) if better and on_edge else radius / 2
        if better:
            centre, best = point.vector, point.cost
        if bad:
            failed.append(point.vector)
        radius = max(room(centre, failed, radius), min(step, _LEAST))
    return centre, radius


def room(centre: Array, failed: Sequence[Array], radius: float) -> float:
    """`radius`, but no more than half way from `centre` to a decode that overreached; at least room for one point."""
    return min([radius, *(max(_distance(point, centre) / 2, _LEAST) for point in failed)])


def rising_to(unforeseen: Mapping[tuple[float, ...], float], centre: Array) -> Surcharge:
    """Errors that the lists lack: what failed decodes measured beyond them (`unforeseen`), none at the centre.

    surcharge(w) = max over failed decodes f of unforeseen_f · (1 − |w − f| / |centre − f|)₊^LATE, at least 0
    """
    # what failed may be the centre itself, where that was decoded with another share of the background
    cones = [(np.array(f), excess, max(_distance(np.array(f), centre), 1e-9)) for f, excess in unforeseen.items()]

    def surcharge(points: Array) -> Array:
        height = np.zeros(len(points))
        for failed, excess, reach in cones:
            nearer = np.maximum(0.0, 1 - (np.abs(points - failed) / SCALE).max(axis=1) / reach)
            height = np.maximum(height, excess * nearer**LATE)
        return height

    return surcharge


def nearness(tried: Sequence[TriedPoint], centre: Array) -> Array:
    """How much each decode's own lists count: exp(−(distance / NEARNESS)² / 2), 1 − MERGED in all."""
    distance = np.array([_distance(t.vector, centre) for t in tried])
    near = np.exp(-0.5 * (distance / NEARNESS) ** 2)
    return np.asarray((1 - MERGED) * near / near.sum())


def within(space: WeightSpace, points: Array, radius: float) -> WeightSpace:
    """The part of the space within `radius` of a point (3,), or of the box that holds all of several (n, 3)."""
    box = np.atleast_2d(points)
    low = np.clip(box.min(axis=0) - radius * SCALE, space.low, space.high)
    high = np.clip(box.max(axis=0) + radius * SCALE, space.low, space.high)
    ranges = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return WeightSpace(lm=ranges[0], subtracted=ranges[1], length=ranges[2])


def beyond(found: Array, first: Array, near: WeightSpace) -> Array:
    """Up to twice as far from the first decode as the lists' optimum, on the same ray, as `near` allows.

    The lists of a decode without fusion lack the hypotheses that fusion would have found, so their optimum falls short
    of the true one. A decode beyond it brings them, and the optimum is bracketed from both sides.
    """
    direction = found - first
    left = np.where(direction > 0, near.high - first, first - near.low)
    moving = np.abs(direction) > 1e-12
    scale = min([2.0, *(left[moving] / np.abs(direction[moving]))])
    return np.asarray(first + scale * direction)


def _distance(a: Array, b: Array) -> float:
    """In the coordinate that differs most, by its scale."""
    return float((np.abs(a - b) / SCALE).max())
