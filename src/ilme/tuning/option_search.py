"""Search options beside the weights: an outer loop around the line search, with a budget of decodes of its own.

    α, the ranking exponent   searched on the cached lists: rank by score / (|y| + 1)^α for each value of a small grid,
                              line-search the weights for each, decode only the best (weights, α) to confirm it
    end_margin, certain_end,
    ctc_weight                change which hypotheses a search can find, so no list can foresee them: one decode for
                              each value, with the best weights and α so far, one option after the other

What is kept is what a decode measured, never what a list promised, so the outcome is never worse on dev than before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from ilme.errors import BadInputError
from ilme.evaluation.tuning_result import TuningStep
from ilme.fusion import FusionWeights

__all__ = ["EXPONENT", "OptionSpace", "Proposal", "tune_options"]

EXPONENT = "length_normalisation"  # α, by the name that the search options give it


@dataclass(frozen=True)
class OptionSpace:
    """Values of search options to try after the weights; none by default. Names are those of `AttentionOptions`.

    Attributes:
        length_normalisation: Values of α to rank the lists by, beside the one the search has.
        end_margin: Values to decode with, in nats; each costs a decode.
        certain_end: Values to decode with, in nats; each costs a decode.
        ctc_weight: Shares of the CTC layer's score to decode with, 0 to 1; each costs a decode.
        decodes: Decodes that all of this may take, on top of `max_decodes` for the weights. α takes what the values of
            the other options leave.
    """

    length_normalisation: tuple[float, ...] = ()
    end_margin: tuple[float, ...] = ()
    certain_end: tuple[float, ...] = ()
    ctc_weight: tuple[float, ...] = ()
    decodes: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            if field.name != "decodes" and not all(math.isfinite(v) and v >= 0 for v in values):
                raise BadInputError(f"{field.name} must list finite numbers of at least 0, got {values}")
        least = sum(len(values) for _, values in self.decoded) + bool(self.length_normalisation)
        if self.decodes < least:
            raise BadInputError(f"decodes={self.decodes} is too few: the listed options take at least {least}")

    def __bool__(self) -> bool:
        return bool(self.length_normalisation or self.decoded)

    @property
    def example(self) -> dict[str, float]:
        """One value of every option that is listed."""
        named = {EXPONENT: self.length_normalisation, **dict(self.decoded)}
        return {name: values[0] for name, values in named.items() if values}

    @property
    def decoded(self) -> list[tuple[str, tuple[float, ...]]]:
        """The options that only a decode can judge, with their values, smallest first."""
        named = (
            ("end_margin", self.end_margin),
            ("certain_end", self.certain_end),
            ("ctc_weight", self.ctc_weight),
        )
        return [(name, tuple(sorted(set(values)))) for name, values in named if values]


@dataclass(frozen=True)
class Proposal:
    """The best weights that the lists know for one α.

    Attributes:
        exponent: α.
        weights: To rank with.
        objective: Errors of the lists, with penalty and smoothing.
    """

    exponent: float
    weights: FusionWeights
    objective: float


def tune_options(
    best: TuningStep,
    space: OptionSpace,
    *,
    exponent: float,
    propose: Callable[[float], Proposal],
    measure: Callable[[FusionWeights, Mapping[str, float]], TuningStep],
    cost: Callable[[TuningStep], float],
) -> TuningStep:
    """The best step that was measured, `best` included; `best.search` holds the options that differ from the given.

    An option's equally good values tie toward the smaller, and for α so do the given value and a smaller one. The other
    options keep the given value unless another makes fewer errors.

    Args:
        best: The best decode of the weights' own search.
        space: What to try.
        exponent: α of the search as it was given.
        propose: The best weights on the cached lists for an α.
        measure: Decodes with weights and changed options, and adds what it found to the lists if only α was changed.
        cost: What is minimised, of a measured step.
    """
    reserved = sum(len(values) for _, values in space.decoded)
    for step in _exponents(best, space, exponent, propose, measure, space.decodes - reserved):
        before, after = (s.search.get(EXPONENT, exponent) for s in (best, step))
        if (cost(step), after) < (cost(best), before):
            best = step
    for name, values in space.decoded:
        for value in values:
            step = measure(best.weights, {**best.search, name: value})
            if cost(step) < cost(best):
                best = step
    return best


def _exponents(
    best: TuningStep,
    space: OptionSpace,
    given: float,
    propose: Callable[[float], Proposal],
    measure: Callable[[FusionWeights, Mapping[str, float]], TuningStep],
    budget: int,
) -> Iterator[TuningStep]:
    """Decodes the lists' best (weights, α), whose hypotheses join the lists, until it is one that was decoded."""
    if not space.length_normalisation:
        return
    grid = sorted({given, *space.length_normalisation})
    known = {(given, best.weights)}
    for _ in range(budget):
        found = min((propose(a) for a in grid), key=lambda p: (round(p.objective, 6), p.exponent))
        if (found.exponent, found.weights) in known:
            return
        known.add((found.exponent, found.weights))
        yield measure(found.weights, {} if found.exponent == given else {EXPONENT: found.exponent})
