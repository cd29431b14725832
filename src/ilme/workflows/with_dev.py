"""What dev speech decides: the internal LM, the weights, what is taken of a list, and how sure a word is.

    dev decoded once → every internal LM scores the n-best lists → the best of them, and the weights, are tuned in the
    search → the best hypothesis or the consensus of the list → kept, or what is used without dev speech
    → the weight of phrases → confidences of words

The safe weights, which are used where there is no dev speech, are what is expected before it is heard: a number of
errors says how far dev may lead away from them. And what was tuned is kept only where it is better than what is used
without dev on clearly more utterances than worse, by an exact sign test: ten utterances do little, hundreds decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.evaluation.metrics import Measurement, NormaliserName, measure
from ilme.evaluation.significance import bootstrap_interval, compare, sign_test
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.ilm import Calibration, internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.lm.phrase_list import Phrase
from ilme.protocols import InternalLM, TokenScorer
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import SearchDecoder
from ilme.recogniser.domain import Domain
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.options import Options, default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.search.consensus import choose
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.confidence import FittedConfidence, calibrate
from ilme.tuning.error_surface import as_vector, as_weights, build_lists
from ilme.tuning.temperature import AnyDecoding, ChosenTemperature, choose_temperature
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import Prior, WeightObjective, WeightSpace, search_weights
from ilme.workflows.decoding import batches_for
from ilme.workflows.dev_check import Unexplained, unexplained
from ilme.workflows.domain_lm import text_writer
from ilme.workflows.options import AdaptOptions
from ilme.workflows.phrases import boost_on_dev
from ilme.workflows.safe_weights import is_measured, safe_choice
from ilme.workflows.tune import FEW_SPEAKERS, tune_decoder

__all__ = ["Adapted", "choose_normaliser", "choose_on_dev"]

LENGTH_OF_TRANSDUCERS = (0.0, 1.5)  # β has to make up for what an LM takes from each label; decoders rank by the mean
EVIDENT = 0.05  # p of the sign test from which dev is believed
EXPECTED = 2.0  # errors that weights a usual step from the safe ones cost, and an internal LM that is not the safe one
Say = Callable[[str], None]


@dataclass(frozen=True)
class Adapted:
    """What adaptation found.

    Attributes:
        domain: The folder's card.
        before, after: Dev without and with fusion; None without dev.
        tuning: The tuning of the chosen internal LM; None without dev.
        internal: The internal LM that was chosen; None if none helps.
        ranking: Errors that each internal LM promised on the n-best lists.
    """

    domain: Domain
    before: Measurement | None = None
    after: Measurement | None = None
    tuning: TuningResult | None = None
    internal: InternalLM | None = None
    ranking: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Dev:
    """The dev set that is used, and how its errors are counted."""

    utterances: list[Utterance]
    normaliser: NormaliserName

    @property
    def references(self) -> dict[str, str]:
        return {u.id: u.text for u in self.utterances}

    @property
    def speakers(self) -> dict[str, str]:
        """Who spoke; empty where they are too few to resample: utterances are resampled instead."""
        found = {u.id: u.speaker for u in self.utterances}
        return {} if len(set(found.values())) < FEW_SPEAKERS else found

    def without(self, aside: Sequence[Unexplained]) -> _Dev:
        out = {u.id for u in aside}
        return replace(self, utterances=[u for u in self.utterances if u.id not in out])

    def measured(self, lists: Mapping[str, NBest]) -> Measurement:
        texts = {u.id: lists[u.id][0].text for u in self.utterances}
        return measure(self.references, texts, speakers=self.speakers, normaliser_name=self.normaliser)


def choose_on_dev(
    host: Any,
    domain: Domain,
    lm: TokenScorer,
    utterances: Sequence[Utterance],
    phrases: Sequence[Phrase],
    options: AdaptOptions,
    say: Say,
) -> Adapted:
    """A domain with all that dev decides.

    Args:
        host: The model.
        domain: The domain, without weights.
        lm: Its LM.
        utterances: Dev.
        phrases: Names and terms that may be said.
        options: How.
        say: Called with one line for each thing done.
    """
    dev = _Dev(list(utterances), choose_normaliser(options.normaliser))
    search: Options = domain.search or default_options(host, options.beam)
    cache = EncoderCache()
    folds = Folds(host.tokens, host.device) if domain.style == "fold" else None
    lm = FoldedScorer(lm, folds) if folds is not None else lm

    def decoder(internal: InternalLM | None) -> SearchDecoder:
        subtracted = fold_internal(internal, folds) if internal is not None and folds is not None else internal
        recogniser = Recogniser(host, lm=lm, subtracted=subtracted, options=search, cache=cache)
        return SearchDecoder(recogniser, dev.utterances, options=batches_for(host.device, options.batch_seconds))

    plain = decoder(None)
    lists = plain.decode(FusionWeights(), search.beam)
    aside = unexplained(plain.recogniser, dev.utterances, lists, dev.normaliser, text_writer(host, domain.style))
    if aside:
        dev, lists = _explained(dev, lists, aside, say)
    before = dev.measured(lists)
    say(f"dev without LM: WER {before.rate:.2f} on {len(dev.utterances)} utterances")
    space = WeightSpace(length=LENGTH_OF_TRANSDUCERS) if plain.recogniser.frame_synchronous else WeightSpace()
    ranker = _Ranker(lists, dev, plain.recogniser, space, _prior(host, space), options, folds)
    internal, ranking = ranker.best(host, plain.recogniser, say)
    told = ", ".join(f"{n} {e:.0f}" for n, e in ranking.items())
    say(f"internal LMs, errors left on the lists: {told or 'not ranked, dev is too long for lists'}")
    fused = decoder(internal)
    cached = CachedDecoder(fused)
    if len(ranker.whole) == len(dev.utterances):  # what was searched in windows is scored window by window
        cached.know(FusionWeights(), search.beam, lists)
    found = _tuned(cached, fused.recogniser, dev, ranker, search, say)
    hearing = _Hearing(dev, search.beam, lists if len(ranker.whole) == len(dev.utterances) else {}, is_measured(host))
    tuned = hearing.way(internal, found.weights, cached, options.decoding)
    safe = internal if internal.how == ranker.safe(host) else internal_lm(host, ranker.safe(host))
    usual = hearing.way(
        safe,
        as_weights(ranker.prior.centre),
        cached if safe is internal else CachedDecoder(decoder(safe)),
        "usual" if options.decoding == "auto" else options.decoding,
    )
    way, report = hearing.clearer(tuned, usual, say)
    if aside:
        report["set aside"] = {u.id: u.reason for u in aside}
    weights, final = way.weights, way.lists
    if phrases:
        expecting = CachedDecoder(decoder(way.internal))
        expecting.decoder.recogniser = expecting.decoder.recogniser.with_phrases(phrases)
        best, report["phrases"] = boost_on_dev(
            lambda w: expecting.decode(w, search.beam),
            expecting.decoder.recogniser, dev.utterances, phrases, weights, dev.normaliser, say,
        )  # fmt: skip
        weights = replace(weights, phrases=best.boost)
        plain_too = expecting.decode(FusionWeights(phrases=best.boost), search.beam) if way.taken.joined else {}
        with_list = expecting.decode(weights, search.beam)
        final = _answers(expecting.decoder.recogniser, way.taken, weights, with_list, plain_too)
    report["decoding"] = _told_of(way.taken, say)
    search = replace(search, consensus=way.taken.temperature, joined=way.taken.joined)
    sure = calibrate(final, dev.references, dev.normaliser, fused.recogniser.length_exponent)
    report["confidence"] = _told_of_words(sure, say)
    chosen_lm = way.internal if weights.subtracted else None  # an internal LM with weight 0 is none
    after = dev.measured(final)
    report = _dev_report(before, after, weights, ranking, dev.normaliser) | {"decodes": found.decodes} | report
    how = "" if chosen_lm is None else chosen_lm.how
    whole = replace(domain, weights=weights, internal=how, search=search, confidence=sure.confidence, report=report)
    return Adapted(whole, before, after, found, chosen_lm, ranking)


@dataclass(frozen=True)
class _Way:
    """One way to hear dev.

    Attributes:
        internal: What is subtracted.
        weights: Without that of phrases.
        taken: What is taken of each list.
        lists: Those of dev, the answer first.
        measured: The answers' errors.
    """

    internal: InternalLM
    weights: FusionWeights
    taken: ChosenTemperature
    lists: Mapping[str, NBest]
    measured: Measurement


@dataclass(frozen=True)
class _Hearing:
    """Dev, heard in several ways.

    Attributes:
        dev: Dev.
        beam: Of each decode.
        plain: The lists without LM; none where what was searched in windows has no list of its own.
        expect_joined: Whether their say is what is expected.
    """

    dev: _Dev
    beam: int
    plain: Mapping[str, NBest]
    expect_joined: bool

    def way(self, internal: InternalLM, weights: FusionWeights, decoder: CachedDecoder, decoding: AnyDecoding) -> _Way:
        lists, recogniser = decoder.decode(weights, self.beam), decoder.decoder.recogniser
        taken = choose_temperature(
            lists, self.dev.references, self.dev.normaliser, recogniser.length_exponent, decoding,
            plain=self.plain if weights.lm else None, expect_joined=self.expect_joined,
        )  # fmt: skip
        answers = _answers(recogniser, taken, weights, lists, self.plain)
        return _Way(internal, weights, taken, answers, self.dev.measured(answers))

    def clearer(self, tuned: _Way, usual: _Way, say: Say) -> tuple[_Way, dict[str, Any]]:
        """What dev has tuned if that is clearly better than what no dev gives, which it flatters; and what to tell."""
        pairs = list(zip(tuned.measured.utterances, usual.measured.utterances, strict=True))
        better, worse = (sum(sign * (b.counts.errors - a.counts.errors) > 0 for a, b in pairs) for sign in (1, -1))
        p = sign_test(better, worse)
        clear = p <= EVIDENT
        kept = "what dev has tuned" if clear else "what is used without dev speech"
        told = f"better as tuned than with what is used without dev: {better} utterances, worse: {worse}"
        say(f"dev: {told} (sign test p {p:.3f}); {kept} is kept")
        return tuned if clear else usual, {"evidence": {"better": better, "worse": worse, "p": p, "kept": kept}}


def _answers(
    recogniser: Recogniser,
    taken: ChosenTemperature,
    weights: FusionWeights,
    lists: Mapping[str, NBest],
    plain: Mapping[str, NBest],
) -> dict[str, NBest]:
    """The lists with what is taken of each first."""
    if taken.joined:
        return {i: recogniser.agreed(nbest, plain[i], weights, taken.temperature) for i, nbest in lists.items()}
    return {i: choose(nbest, taken.temperature, recogniser.length_exponent) for i, nbest in lists.items()}


def _explained(
    dev: _Dev, lists: Mapping[str, NBest], aside: Sequence[Unexplained], say: Say
) -> tuple[_Dev, dict[str, NBest]]:
    """Dev and its lists without what is set aside."""
    told = f"{len(aside)} of {len(dev.utterances)} utterances are set aside"
    say(f"dev: {told}; the first: {aside[0].id}: {aside[0].reason}")
    dev = dev.without(aside)
    return dev, {i: lists[i] for i in dev.references}


def _prior(host: Any, space: WeightSpace) -> Prior:
    """The safe weights, as what is expected."""
    lm, subtracted, length = as_vector(safe_choice(host)[1]).clip(space.low, space.high).tolist()
    return Prior(lm, subtracted, length, EXPECTED)


def _tuned(
    cached: CachedDecoder, recogniser: Recogniser, dev: _Dev, ranker: _Ranker, search: Options, say: Say
) -> TuningResult:
    """The weights, found in the search."""
    options, speakers = ranker.options, dev.speakers
    return tune_decoder(
        cached,
        recogniser,
        [replace(u, speaker=speakers.get(u.id, "")) for u in dev.utterances],
        TuningOptions(
            space=ranker.space,
            background=options.background,
            beam=search.beam,
            max_decodes=options.max_decodes,
            normaliser=dev.normaliser,
            prior=ranker.prior,
            smoothing=options.smoothing,
            seed=options.seed,
        ),
        lambda step: say(
            f"  λ_T {step.weights.lm:.3f}, μ {step.weights.subtracted:.3f}, β {step.weights.length:.2f}: "
            f"WER {step.counts.rate:.2f}"
        ),
    )


@dataclass(frozen=True)
class _Ranker:
    """Ranks internal LMs by the errors that the best weights of each leave on the n-best lists."""

    lists: Mapping[str, NBest]
    dev: _Dev
    recogniser: Recogniser
    space: WeightSpace
    prior: Prior
    options: AdaptOptions
    folds: Folds | None

    @property
    def whole(self) -> list[Utterance]:
        """The utterances that the model hears at once."""
        return [u for u in self.dev.utterances if u.seconds <= self.recogniser.window]

    def safe(self, host: Any) -> str:
        """The internal LM that is taken without dev, or the one that was named."""
        return safe_choice(host)[0] if self.options.internal == "auto" else self.options.internal

    def best(self, host: Any, plain: Recogniser, say: Say) -> tuple[InternalLM, dict[str, float]]:
        """The best internal LM, and the errors of each, best first; those that dev is too small for are left out.

        Where no utterance is heard at once there is nothing to rank by: the safe one, or that which was named.
        """
        chosen = self.whole[: self.options.calibration]
        calibration = plain.calibrate(
            (u.samples(plain.rate) for u in chosen), [self.lists[u.id][0].tokens for u in chosen]
        )
        told = Calibration(labels=[nbest[0].tokens for nbest in self.lists.values()])  # for those that read text alone
        names = internal_lm.available(host) if self.options.internal == "auto" else (self.options.internal,)
        candidates: dict[str, InternalLM] = {}
        for name in names:
            needs = internal_lm.needs(host, name)
            try:
                candidates[name] = internal_lm(host, name, calibration=told if needs == "transcripts" else calibration)
            except BadInputError as error:
                if needs == "nothing" or len(names) == 1:
                    raise
                say(f"internal LM {name} is left out: {error}")
        safe = safe_choice(host)[0]
        if not chosen:
            return candidates.get(safe) or next(iter(candidates.values())), {}
        ranking = {name: self.errors(scorer) for name, scorer in candidates.items()}
        best = min(ranking, key=lambda name: ranking[name] + (EXPECTED if name != safe else 0.0))
        return candidates[best], dict(sorted(ranking.items(), key=lambda item: item[1]))

    def errors(self, internal: InternalLM) -> float:
        scorer = internal if self.folds is None else fold_internal(internal, self.folds)
        end = self.recogniser.ends["subtracted"]
        lists = {u.id: self.lists[u.id] for u in self.whole}
        built = build_lists(
            complete(lists, subtracted=SequenceScorer(scorer, finish=end, rows=256)),
            {i: self.dev.references[i] for i in lists},
            normaliser_name=self.dev.normaliser,
            length_exponent=self.recogniser.length_exponent,
        )
        best = search_weights(
            built,
            self.space,
            objective=WeightObjective(smoothing=self.options.smoothing, prior=self.prior),
            starts=[self.prior.centre],
            seed=self.options.seed,
        )
        return round(best.objective, 2)


def choose_normaliser(name: str) -> NormaliserName:
    """The named normaliser; auto is Whisper's own where it is installed, else the spoken form."""
    if name != "auto":
        return name  # type: ignore[return-value]
    import importlib.util

    return "whisper" if importlib.util.find_spec("whisper_normalizer") else "spoken"


def _dev_report(
    before: Measurement,
    after: Measurement,
    weights: FusionWeights,
    ranking: dict[str, float],
    normaliser: str,
) -> dict[str, Any]:
    pair = compare("after", after, "before", before, replicates=2000)
    report: dict[str, Any] = {
        "normaliser": normaliser,
        "dev utterances": len(before.utterances),
        "before": _row(before),
        "after": _row(after),
        "relative": round(pair.relative, 2),
        "p (paired bootstrap)": round(pair.p_bootstrap, 4),
        "internal LMs, errors on the lists": ranking,
    }
    if not (weights.lm or weights.subtracted or weights.length):
        report["note"] = (
            "no weights made fewer errors on dev than no fusion at all, so the weights are zero and the model runs as "
            "it was: the text may be unlike the speech, too little, or the model may know the domain already"
        )
    elif after.total.errors > before.total.errors:
        more = after.total.errors - before.total.errors
        report["note"] = (
            f"dev has {more} more errors with these weights than without an LM, too few to speak against weights that "
            "helped in other domains: give more dev speech, which decides, or compare both with `ilme transcribe "
            "--baseline`"
        )
    return report


def _row(measured: Measurement) -> dict[str, Any]:
    interval = bootstrap_interval(measured, replicates=2000)
    return {
        "WER": round(measured.rate, 4),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        **{k: v for k, v in asdict(measured.total).items() if k != "hits"},
    }


def _told_of(taken: ChosenTemperature, say: Say) -> dict[str, Any]:
    """What is taken of each list, for the card."""
    name = "joined" if taken.joined else "consensus" if taken.temperature else "best"
    if taken.temperature:
        lists = "each list and of one without LMs" if taken.joined else "each list"
        say(f"decoding: the consensus of {lists}, temperature {taken.temperature:g}")
    errors = {
        what: {f"{t:g}": e for t, e in found.items()}
        for what, found in (("errors", taken.errors), ("joined errors", taken.joined_errors))
    }
    return {"taken": name, "temperature": taken.temperature, **errors}


def _told_of_words(sure: FittedConfidence, say: Say) -> dict[str, Any]:
    """How well the confidences of words fit, for the card."""
    if sure.confidence is not None and sure.after is not None:
        say(f"confidences: NCE {sure.before['NCE']:.2f} as the list has them, {sure.after['NCE']:.2f} fitted")
    used = "fitted to dev" if sure.confidence is not None else "the n-best list's own"
    return {"used": used, "words": sure.words, "right": sure.right, "before": sure.before, "after": sure.after}
