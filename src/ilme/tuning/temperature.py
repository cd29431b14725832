"""The temperature of the consensus, on the n-best lists of a dev set that has been decoded with the final weights.

A temperature that is lucky by chance has neighbours that are not: each counts as the mean of itself and its neighbours
on the ladder, and the best hypothesis is kept unless some temperature mends WORTH errors or more in that sense, which a
few utterances seldom show.

The consensus with a second list, of a search without LMs, costs that search: where it is not expected to be good, it
has to mend twice as many errors and a share of all. Where it is, the best hypothesis has to leave WORTH fewer, less
that share: a small dev set keeps what is expected, a large one decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ilme.evaluation.metrics import ErrorCounts, NormaliserName, count_each, normaliser
from ilme.search.consensus import choose, consensus
from ilme.search.hypothesis import NBest

__all__ = ["LADDER", "USUAL", "AnyDecoding", "ChosenTemperature", "Decoding", "choose_temperature"]

Decoding = Literal["auto", "best", "consensus"]  # what a list may be tuned to
AnyDecoding = Decoding | Literal["joined", "usual"]
WORTH = 2.0  # errors of dev
USUAL = 0.5  # the temperature that is expected, where there is nothing else to choose by
PAYS = 0.02  # share of dev's errors that a second search must mend
LADDER = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class ChosenTemperature:
    """How to take one hypothesis of a list.

    Attributes:
        temperature: 0: the best.
        counts: Errors of what is then taken, on dev.
        errors: How many errors, of the best (0) and of the consensus at each temperature.
        joined: Whether the lists of the search without LMs take part.
        joined_errors: How many errors there are then; empty where there are no such lists.
    """

    temperature: float
    counts: ErrorCounts
    errors: dict[float, int]
    joined: bool = False
    joined_errors: dict[float, int] = field(default_factory=dict)


def choose_temperature(
    lists: Mapping[str, NBest],
    references: Mapping[str, str],
    normaliser_name: NormaliserName,
    exponent: float = 0.0,
    decoding: AnyDecoding = "auto",
    plain: Mapping[str, NBest] | None = None,
    expect_joined: bool = False,
) -> ChosenTemperature:
    """The temperature with the fewest errors on dev; 0 if the best hypotheses have hardly more.

    Args:
        lists: Best first by score.
        references: The transcripts.
        normaliser_name: Of both before errors are counted.
        exponent: α of the search.
        decoding: `consensus` takes one, whatever dev says, `joined` one with the plain lists; `best` none; `usual` what
            is taken where there is no dev: with plain lists their consensus at the usual temperature, else none.
        plain: The lists of a search without LMs, which may then take part.
        expect_joined: Whether the consensus with them is what is taken where dev says little.
    """
    beside = plain or {}
    ladder = (0.0, *LADDER)
    answers = {(t, False): {i: choose(n, t, exponent)[0].text for i, n in lists.items()} for t in ladder}
    if beside:
        for t in LADDER:
            answers[t, True] = {i: consensus([n, beside[i]], t, exponent)[0].text for i, n in lists.items()}
    normalise = normaliser(normaliser_name)
    pairs = sorted({(i, text) for texts in answers.values() for i, text in texts.items()})
    counts = count_each([normalise(references[i]) for i, _ in pairs], [normalise(text) for _, text in pairs])
    known = dict(zip(pairs, counts, strict=True))
    totals = {way: sum((known[pair] for pair in texts.items()), ErrorCounts()) for way, texts in answers.items()}
    best = totals[0.0, False].errors

    def smoothed(way: tuple[float, bool]) -> float:
        place = LADDER.index(way[0])
        near = LADDER[max(0, place - 1) : place + 2]
        return sum(totals[t, way[1]].errors for t in near) / len(near)

    def cost(way: tuple[float, bool]) -> float:
        """Errors, and what a way must mend before it is taken."""
        ahead = WORTH if expect_joined and beside else 0.0
        if way[1]:
            return smoothed(way) + PAYS * best + (0.0 if ahead else 2 * WORTH)
        return ahead + (smoothed(way) + WORTH if way[0] else best)

    usual = [(USUAL, True) if beside and expect_joined else (0.0, False)]
    allowed = {"auto": answers, "best": [(0.0, False)], "usual": usual}.get(decoding)
    if allowed is None:
        allowed = [way for way in answers if way[0] and way[1] == (decoding == "joined" and bool(beside))]
    chosen = min(allowed, key=lambda way: (cost(way), way[1], not way[0], abs(way[0] - USUAL)))
    told = [{t: totals[t, joined].errors for t in ladder if (t, joined) in totals} for joined in (False, True)]
    return ChosenTemperature(chosen[0], totals[chosen], told[0], chosen[1], told[1])
