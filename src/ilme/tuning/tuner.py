"""Finds fusion weights on a dev set in a few decodes.

    decode dev → keep n-best lists with unweighted scores → best weights on the lists (exact error counts)
      → decode again with them, merge the new hypotheses into the lists → … until nothing changes

A decode that overreached (far more errors than the best before it) is measured, but stays out of the lists. The share ε
of the background in what is subtracted is chosen with the weights (`ilme.tuning.shares`).

Every decode is a measurement in the real search, and the weights returned are the best of those measured: the
lists only propose. Search options may be tuned after the weights (`ilme.tuning.option_search`). The function sees dev
and nothing else; there is no argument through which a test set could come in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, get_args, runtime_checkable

import numpy as np

from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts, NormaliserName, measure
from ilme.evaluation.tuning_result import Balance, HeatMap, Method, TuningResult, TuningStep
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.tuning.error_surface import Array, CandidateLists, as_vector, as_weights, build_lists
from ilme.tuning.maps import balance_along_lm, heat_map
from ilme.tuning.option_search import EXPONENT, OptionSpace, Proposal, tune_options
from ilme.tuning.proposals import APART, Proposer, TriedPoint, overreached, overreaches, room, within
from ilme.tuning.shares import Rescore, SharePoint, Views, next_point
from ilme.tuning.stability import stability
from ilme.tuning.temperature import Decoding
from ilme.tuning.weight_search import Prior, WeightObjective, WeightSpace, search_weights

__all__ = ["AdjustableDecoder", "Decoder", "TuningOptions", "merge_lists", "tune"]


_DECIMALS = 4  # of a weight: enough for any decode, and the last bits of a processor decide nothing
CLEARLY = 0.01  # share of the errors before by which a last decode must have fewer to say that more would help


class Decoder(Protocol):
    """A dev set, a model and its scorers, ready to be decoded with any weights."""

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """The n-best list of every utterance, by id, with text.

        Every component score is filled in whatever the weights are: a scorer whose weight is 0 takes no part
        in the search, but its scores of the hypotheses found are needed to ask what another weight would choose.
        """
        ...


@runtime_checkable
class AdjustableDecoder(Decoder, Protocol):
    """A decoder whose search options can be tuned."""

    def adjusted(self, search: Mapping[str, float]) -> Decoder:
        """The same set and model with these search options changed."""
        ...


@dataclass(frozen=True)
class TuningOptions:
    """How to tune.

    Attributes:
        method: BS, SF, DR, LODR or ILME: which weights exist. DR, LODR and ILME differ in the decoder's
            scorer.
        space: The range of each weight.
        background: Values of ε, the share of the background in what is subtracted, of which the lists choose one with
            the weights; methods that subtract nothing have none. One value fixes it.
        beam: Beam of every decode, and so of the weights found; 0 takes the model's own.
        first_beam: Beam of the first decode, whose lists the search starts from; 0 means `beam`.
        max_decodes: How often dev may be decoded, the confirming decode included.
        normaliser: Applied to references and hypotheses before errors are counted.
        penalty: Points of WER that one unit of weight costs; keeps weights small where dev hardly cares.
        prior: Weights that are expected before dev is heard, which decide where dev is small; none by default. They are
            decoded with, second.
        smoothing: Errors are averaged over weights ± this much, so that a lucky narrow pit is not chosen; twice as
            much for each of up to three decodes still to come.
        step: How far from the best weights decoded so far the next may lie, at first: lists know nothing of
            hypotheses far away. Three times as far in β, which has to make up for what an LM takes from each label.
        restarts: Drawn points from which the search on the lists starts as well.
        length_exponent: α if the decoder ranks by fused score / (|y| + 1)^α.
        replicates: Bootstrap replicates of the stability estimate; 0 leaves it out.
        search: Search options to try after the weights, with their own number of decodes; none by default.
        decoding: What is taken of each n-best list: the best hypothesis, the consensus of the list at the temperature
            with the fewest errors on dev, or, with auto, what has fewer errors there. It costs no decode.
        grid: Points along each side of the heat map.
        seed: Seed of every draw.
    """

    method: Method = "ILME"
    space: WeightSpace = field(default_factory=WeightSpace)
    background: tuple[float, ...] = (0.0,)
    beam: int = 25
    first_beam: int = 0
    max_decodes: int = 5
    normaliser: NormaliserName = "none"
    penalty: float = 0.0
    prior: Prior = field(default_factory=Prior)
    smoothing: float = 0.01
    step: float = 0.4
    restarts: int = 4
    length_exponent: float = 0.0
    replicates: int = 50
    search: OptionSpace = field(default_factory=OptionSpace)
    decoding: Decoding = "best"
    grid: int = 21
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("beam", 0),
            ("first_beam", 0),
            ("max_decodes", 1),
            ("restarts", 0),
            ("replicates", 0),
        ):
            if getattr(self, name) < least:
                raise BadInputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.decoding not in get_args(Decoding):
            raise BadInputError(f"decoding is one of {', '.join(get_args(Decoding))}, not {self.decoding!r}")
        if self.grid < 2:
            raise BadInputError(f"the heat map needs at least 2 points a side, got grid={self.grid}")
        if not self.step > 0:
            raise BadInputError(f"step must be positive, got {self.step}")
        if not self.background or not all(0 <= share < 1 for share in self.background):
            raise BadInputError(f"background lists shares of at least 0 and below 1, got {self.background}")

    @property
    def objective(self) -> WeightObjective:
        """What the search on lists minimises."""
        return WeightObjective(self.penalty, self.smoothing, self.prior)


def tune(
    decoder: Decoder,
    references: Mapping[str, str],
    *,
    options: TuningOptions | None = None,
    speakers: Mapping[str, str] | None = None,
    rescore: Rescore | None = None,
    on_step: Callable[[TuningStep], None] | None = None,
) -> TuningResult:
    """The weights with the fewest errors on dev, measured in the search.

    The first decode has the smallest weights of the space (0 unless a range excludes it), so the result is
    never worse on dev than no fusion at all.

    Args:
        decoder: Decodes dev with given weights.
        references: Transcripts of dev by utterance id.
        options: See `TuningOptions`.
        speakers: Who spoke each utterance; the stability estimate resamples speakers.
        rescore: Lists with the subtracted scores of each ε of the options (`ilme.search.rescoring.SmoothedLists`);
            needed for any but 0.
        on_step: Called after each decode, for progress.
    """
    began = time.perf_counter()
    options = options or TuningOptions()
    if options.search:
        _adjustable(decoder).adjusted(options.search.example)  # an option it does not have is an error now, not later
    space = options.space.restricted(options.method)
    views = _views(options, space, references, rescore)
    proposer = Proposer(
        space,
        options.objective,
        step=options.step,
        decodes=options.max_decodes,
        restarts=options.restarts,
        seed=options.seed,
    )
    everything: dict[str, NBest] = {}
    merged: dict[str, NBest] = {}  # without the hypotheses of decodes that overreached
    steps: list[TuningStep] = []
    tried: list[SharePoint] = []
    at: tuple[Array, float] | None = (space.smallest, views.shares[0])
    lists: dict[float, CandidateLists] = {}
    while at is not None and len(steps) < options.max_decodes:
        vector, share = at
        beam = options.first_beam or options.beam if not steps else options.beam
        decoded = decoder.decode(as_weights(vector, share), beam)
        added = merge_lists(everything, decoded)
        known = views(everything)
        step = _step(as_weights(vector, share), beam, decoded, references, known[share], added, options)
        own = views(decoded)
        point = TriedPoint(vector, _cost(step, options), own[share], confirmed=beam == options.beam)
        tried.append(SharePoint(share, point, own))
        failed = overreached([t.point for t in tried])
        steps.append(replace(step, overreached=failed[-1]))
        if on_step is not None:
            on_step(steps[-1])
        if not lists or not failed[-1]:
            merge_lists(merged, decoded)
            lists = views(merged) if any(failed) else known
        at = next_point(proposer, lists, tried)
        foreseen = added == 0 and len(steps) > 1 and not any(failed)
        if at is not None and foreseen and _no_gain(steps, lists[at[1]], at[0], options):
            break
    if not lists:
        raise BadInputError("max_decodes must be at least 1")
    best = _best(steps, options)
    gaining = at is not None and len(steps) >= options.max_decodes and _last_gained(steps)
    share = best.weights.background if best.weights.subtracted else views.shares[0]
    if options.search:
        chosen = dict(views.lists(merged)[share])
        best = _OptionRun(decoder, references, space, options, chosen, steps, share, on_step).best_after(best)
        options = replace(options, length_exponent=best.search.get(EXPONENT, options.length_exponent))
        lists = {share: _lists(chosen, references, space, options)}
    result = _result(best, steps, lists[share], space, speakers, options, time.perf_counter() - began)
    return replace(result, gaining=gaining)


def _views(options: TuningOptions, space: WeightSpace, references: Mapping[str, str], rescore: Rescore | None) -> Views:
    """The lists with each ε that the method may have: one that subtracts nothing has none."""
    shares = tuple(dict.fromkeys(options.background)) if space.high[1] > 0 else (0.0,)
    if any(shares) and rescore is None:
        raise BadInputError("a background other than 0 takes a `rescore`, which says what each of them subtracts")
    return Views(shares, rescore if any(shares) else None, lambda lists: _lists(lists, references, space, options))


@dataclass
class _OptionRun:
    """The lists and the decoder, as `tune_options` asks for them; every decode is added to `steps`."""

    decoder: Decoder
    references: Mapping[str, str]
    space: WeightSpace
    options: TuningOptions
    merged: dict[str, NBest]
    steps: list[TuningStep]
    share: float
    on_step: Callable[[TuningStep], None] | None

    def best_after(self, best: TuningStep) -> TuningStep:
        return tune_options(
            best,
            self.options.search,
            exponent=self.options.length_exponent,
            propose=self.propose,
            measure=self.measure,
            cost=lambda step: _cost(step, self.options),
        )

    def propose(self, exponent: float) -> Proposal:
        """The best weights on the merged lists, ranked with this α."""
        lists = _lists(self.merged, self.references, self.space, replace(self.options, length_exponent=exponent))
        found = search_weights(
            lists,
            _neighbourhood(self.space, self.steps, self.options),
            objective=self.options.objective,
            starts=[as_vector(s.weights) for s in self.steps],
            restarts=self.options.restarts,
            seed=self.options.seed,
        )
        vector = np.clip(np.round(found.vector, _DECIMALS), self.space.low, self.space.high)
        return Proposal(exponent, as_weights(vector, self.share), found.objective)

    def measure(self, weights: FusionWeights, search: Mapping[str, float]) -> TuningStep:
        decoded = _adjustable(self.decoder).adjusted(search).decode(weights, self.options.beam)
        options = replace(self.options, length_exponent=search.get(EXPONENT, self.options.length_exponent))
        own = _lists(decoded, self.references, self.space, options)
        step = _step(weights, options.beam, decoded, self.references, own, 0, options)
        failed = overreaches(_cost(step, options), min(_cost(s, options) for s in self.steps))
        added = merge_lists(self.merged, decoded) if set(search) <= {EXPONENT} and not failed else 0
        self.steps.append(replace(step, added=added, search=dict(search), overreached=failed))
        if self.on_step is not None:
            self.on_step(self.steps[-1])
        return self.steps[-1]


def _adjustable(decoder: Decoder) -> AdjustableDecoder:
    if not isinstance(decoder, AdjustableDecoder):
        raise BadInputError(f"{type(decoder).__name__} has no `adjusted`: its search options cannot be tuned")
    return decoder


def merge_lists(into: dict[str, NBest], lists: Mapping[str, NBest]) -> int:
    """Adds the hypotheses of `lists` to `into`, best acoustic score kept; returns how many were new."""
    added = 0
    for i, nbest in lists.items():
        known: dict[tuple[int, ...], Hypothesis] = {h.tokens: h for h in into.get(i, [])}
        for h in nbest:
            old = known.get(h.tokens)
            added += old is None
            if old is None or h.scores.asr > old.scores.asr:
                known[h.tokens] = h
        into[i] = list(known.values())
    return added


def _lists(
    merged: Mapping[str, NBest], references: Mapping[str, str], space: WeightSpace, options: TuningOptions
) -> CandidateLists:
    return build_lists(
        merged,
        references,
        normaliser_name=options.normaliser,
        length_exponent=options.length_exponent,
        within=(space.low, space.high),
    )


def _step(
    weights: FusionWeights,
    beam: int,
    decoded: Mapping[str, NBest],
    references: Mapping[str, str],
    lists: CandidateLists,
    added: int,
    options: TuningOptions,
) -> TuningStep:
    """What one decode measured; the lists' own count beside it tells how far they can be trusted."""
    texts = {i: nbest[0].text for i, nbest in decoded.items() if nbest}
    counts = measure(references, texts, normaliser_name=options.normaliser).total
    return TuningStep(weights, beam, counts, lists.counts(as_vector(weights)).rate, added)


def _neighbourhood(space: WeightSpace, steps: list[TuningStep], options: TuningOptions) -> WeightSpace:
    """The part of the space that the lists know: within `step` of the box that holds the decodes they came from.

    Less where decodes overreached: no more than half way from the best to the nearest of them.
    """
    trusted = np.array([as_vector(s.weights) for s in steps if not s.overreached])
    failed = [as_vector(s.weights) for s in steps if s.overreached and not s.search]
    return within(space, trusted, room(as_vector(_best(steps, options).weights), failed, options.step))


def _no_gain(steps: list[TuningStep], lists: CandidateLists, vector: Array, options: TuningOptions) -> bool:
    """Whether the lists promise nothing better at `vector` than a decode has already reached."""
    beside = float(options.objective.beside(vector[None], lists.total_words)[0])
    return lists.counts(vector).errors + beside >= min(_cost(s, options) for s in steps)


def _best(steps: list[TuningStep], options: TuningOptions) -> TuningStep:
    """The measured step with the smallest objective; of equal ones that with the smallest weights."""
    comparable = [s for s in steps if s.beam == options.beam] or steps
    return min(comparable, key=lambda s: (_cost(s, options), _size(s)))


def _cost(step: TuningStep, options: TuningOptions) -> float:
    """Measured errors, the penalty on the size of the weights, and the prior."""
    return step.counts.errors + float(options.objective.beside(as_vector(step.weights)[None], step.counts.words)[0])


def _size(step: TuningStep) -> float:
    return float(np.abs(as_vector(step.weights)).sum())


def _result(
    best: TuningStep,
    steps: list[TuningStep],
    lists: CandidateLists,
    space: WeightSpace,
    speakers: Mapping[str, str] | None,
    options: TuningOptions,
    seconds: float,
) -> TuningResult:
    chosen = as_vector(best.weights)
    surface: HeatMap = heat_map(lists, space, beta=best.weights.length, points=options.grid)
    shift: Balance = balance_along_lm(lists, space, best.weights, points=2 * options.grid - 1)
    free = bool((space.high > space.low).any())
    steadiness = None
    if options.replicates and free:
        overreaching = any(s.overreached for s in steps)
        steadiness = stability(
            lists,
            _neighbourhood(space, steps, options) if overreaching else space,
            chosen,
            objective=options.objective,
            speakers=speakers,
            replicates=options.replicates,
            seed=options.seed,
        )
    return TuningResult(
        method=options.method,
        weights=best.weights,
        dev=best.counts,
        baseline=_baseline(steps),
        beam=options.beam,
        normaliser=options.normaliser,
        length_exponent=options.length_exponent,
        utterances=len(lists.ids),
        steps=tuple(steps),
        heat_map=surface,
        balance=shift,
        stability=steadiness,
        seconds=seconds,
        search=dict(best.search),
        at_bound=_at_bound(space, chosen),
    )


def _at_bound(space: WeightSpace, chosen: Array) -> tuple[str, ...]:
    """The weights that more room might have made larger."""
    ends = (space.high > space.low) & (chosen > space.high - APART / 2)
    return tuple(name for name, ends_there in zip(("lm", "subtracted", "length"), ends, strict=True) if ends_there)


def _last_gained(steps: list[TuningStep]) -> bool:
    """Whether the last decode has clearly fewer errors than every one before it."""
    before = [step.counts.errors for step in steps[:-1]]
    return bool(before) and steps[-1].counts.errors < (1 - CLEARLY) * min(before)


def _baseline(steps: list[TuningStep]) -> ErrorCounts | None:
    """What was measured without any fusion, if it was."""
    none = FusionWeights()
    return next((s.counts for s in steps if replace(s.weights, length=0.0) == none), None)
