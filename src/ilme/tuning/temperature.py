"""The temperature of the consensus, on the n-best lists of a dev set that has been decoded with the final weights.

A temperature that is lucky by chance has neighbours that are not: each counts as the mean of itself and its neighbours
on the ladder, and the best hypothesis is kept unless some temperature mends WORTH errors or more in that sense, which a
few utterances seldom show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ilme.evaluation.metrics import ErrorCounts, NormaliserName, count_each, normaliser
from ilme.search.consensus import choose
from ilme.search.hypothesis import NBest

__all__ = ["LADDER", "ChosenTemperature", "Decoding", "choose_temperature"]

Decoding = Literal["auto", "best", "consensus"]
WORTH = 2.0  # errors of dev
LADDER = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class ChosenTemperature:
    """How to take one hypothesis of a list.

    Attributes:
        temperature: 0: the best.
        counts: Errors of what is then taken, on dev.
        errors: How many errors, of the best (0) and of the consensus at each temperature.
    """

    temperature: float
    counts: ErrorCounts
    errors: dict[float, int]


def choose_temperature(
    lists: Mapping[str, NBest],
    references: Mapping[str, str],
    normaliser_name: NormaliserName,
    exponent: float = 0.0,
    decoding: Decoding = "auto",
) -> ChosenTemperature:
    """The temperature with the fewest errors on dev; 0 if the best hypotheses have hardly more.

    Args:
        lists: Best first by score.
        references: The transcripts.
        normaliser_name: Of both before errors are counted.
        exponent: α of the search.
        decoding: `consensus` takes one, whatever dev says; `best` none.
    """
    normalise = normaliser(normaliser_name)
    answers = {t: {i: choose(nbest, t, exponent)[0].text for i, nbest in lists.items()} for t in (0.0, *LADDER)}
    pairs = sorted({(i, text) for texts in answers.values() for i, text in texts.items()})
    counts = count_each([normalise(references[i]) for i, _ in pairs], [normalise(text) for _, text in pairs])
    known = dict(zip(pairs, counts, strict=True))
    totals = {t: sum((known[pair] for pair in texts.items()), ErrorCounts()) for t, texts in answers.items()}
    errors = {t: counts.errors for t, counts in totals.items()}

    def smoothed(place: int) -> float:
        near = LADDER[max(0, place - 1) : place + 2]
        return sum(errors[t] for t in near) / len(near)

    best = min(range(len(LADDER)), key=smoothed)
    better = decoding == "consensus" or (decoding == "auto" and smoothed(best) <= errors[0.0] - WORTH)
    chosen = LADDER[best] if better else 0.0
    return ChosenTemperature(chosen, totals[chosen], errors)
