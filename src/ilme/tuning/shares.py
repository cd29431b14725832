"""The share ε of the background in what is subtracted, chosen together with the weights (see `ilme.smoothing`).

What another ε would have said of a hypothesis follows from the same pass of the subtracted scorer, so the lists are
known for every ε of a small grid at no decode. Each ε proposes weights on lists of its own, and the best of these
proposals is decoded: ε costs no decode of its own, and every method that subtracts has the same effort. A decode that
overreached, by a loop that an unsmoothed LM rewards, says nothing about another ε.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ilme.search.hypothesis import NBest
from ilme.tuning.error_surface import Array, CandidateLists
from ilme.tuning.proposals import Proposer, TriedPoint, overreached

__all__ = ["Rescore", "SharePoint", "Views", "next_point"]

CLEARLY = 0.01  # share of the errors that lists must promise to save before another ε is tried
Rescore = Callable[[Mapping[str, NBest]], dict[float, dict[str, NBest]]]  # lists to the same lists for every ε


@dataclass(frozen=True)
class Views:
    """Lists as they are with each ε.

    Attributes:
        shares: The values of ε.
        rescore: Lists with the subtracted scores of each; None where 0 is the only one.
        build: n-best lists to arrays.
    """

    shares: tuple[float, ...]
    rescore: Rescore | None
    build: Callable[[Mapping[str, NBest]], CandidateLists]

    def lists(self, lists: Mapping[str, NBest]) -> Mapping[float, Mapping[str, NBest]]:
        """The n-best lists of each ε."""
        return {self.shares[0]: lists} if self.rescore is None else self.rescore(lists)

    def __call__(self, lists: Mapping[str, NBest]) -> dict[float, CandidateLists]:
        return {share: self.build(found) for share, found in self.lists(lists).items()}


@dataclass(frozen=True)
class SharePoint:
    """A decode, as each ε sees it.

    Attributes:
        share: The ε that it was decoded with.
        point: Its weights and cost, and its lists with that ε.
        views: Its lists with every ε.
    """

    share: float
    point: TriedPoint
    views: Mapping[float, CandidateLists]

    def seen(self, share: float, again: bool) -> TriedPoint:
        """The decode for proposals with another ε; `again`: whether its weights may be tried once more with that."""
        other = again and share != self.share and self.point.vector[1] > 0
        return replace(self.point, lists=self.views[share], confirmed=self.point.confirmed and not other)


def next_point(
    proposer: Proposer, merged: Mapping[float, CandidateLists], tried: Sequence[SharePoint]
) -> tuple[Array, float] | None:
    """The weights and the ε to decode with next; None if there is nothing else to try.

    The ε of the best decode so far is kept unless the lists promise clearly fewer errors with another; as long as no
    decode that subtracts was the best, the one with the fewest is taken, of equal ones the larger.

    Args:
        proposer: Proposes weights for one ε.
        merged: The hypotheses of all decodes that did not overreach, with each ε.
        tried: The decodes, in their order.
    """
    failed = overreached([t.point for t in tried])
    best = min(tried, key=lambda t: t.point.cost)
    fixed = not (proposer.space.high > proposer.space.low).any()  # then only ε is left to choose
    found = {}
    for share, lists in merged.items():
        seen = [t.seen(share, fixed) for t, bad in zip(tried, failed, strict=True) if not bad or t.share == share]
        proposal = proposer.propose(lists, seen)
        if proposal is not None:
            kept = share == best.share and best.point.vector[1] > 0
            found[share] = (round(proposal.objective * (1 - CLEARLY if kept else 1), 6), -share, proposal.vector)
    if not found:
        return None
    share = min(found, key=lambda s: found[s][:2])
    return found[share][2], share
