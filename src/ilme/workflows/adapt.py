"""Adapts a model that exists to a domain, from text alone.

    text in the model's own style → LM over its tokens → dev decoded once → every internal LM scores the n-best lists
      → the best of them, and the weights, are tuned in the search → dev decoded once more → a domain folder

Nothing is made worse in silence: if no weights make fewer errors on dev than none, the folder says so and its weights
are zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from ilme.adapters.hf import TransformerAED
from ilme.adapters.recognition import AdaptedRecogniser, EncoderCache, search_options
from ilme.data.utterances import Utterance
from ilme.data.written_style import PreparedText, domain_lines
from ilme.errors import BadInputError
from ilme.evaluation.metrics import Measurement, NormaliserName, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.ilm.transformer import ESTIMATORS, WITHOUT_SPEECH, Calibration, TransformerILM, estimate
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.lm.ngram import NGramScorer
from ilme.protocols import TokenScorer
from ilme.recogniser.cached_decoder import RememberedDecodes
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.domain import INTERNAL, LM, Domain, write_tensors
from ilme.search.attention import AttentionOptions
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.error_surface import as_vector, build_lists
from ilme.tuning.tuner import TuningOptions, tune
from ilme.tuning.weight_search import Objective, WeightSpace, search_weights

__all__ = ["SAFE_INTERNAL", "SAFE_WEIGHTS", "AdaptOptions", "Adapted", "adapt", "train_domain_lm"]

# Without dev speech: the weights whose worst domain of three was best on n-best lists, with an internal LM that needs
# no speech and is a language model in every model tried. In the search no domain got worse: benchmarks/safe_weights.py.
SAFE_INTERNAL = "silence"
SAFE_WEIGHTS = FusionWeights(lm=0.25, subtracted=0.125)
SAFE_DOMAINS = "audiobooks, telephone calls and voice commands"
FEW_SPEAKERS = 5
Say = Callable[[str], None]
Style = Literal["restore", "fold", "keep"]


@dataclass(frozen=True)
class AdaptOptions:
    """How a model is adapted.

    Attributes:
        style: What is done about text whose case and punctuation are not the model's. `restore` gives text without
            case the model's; `fold` makes an LM that passes over case and punctuation; `keep` leaves the text as it is.
        order: Order of the n-gram LM.
        prune: Counts up to which n-grams of each order are left out, unigrams first; the last stands for the rest.
        internal: The internal LM: a name, or auto to let dev speech choose.
        normaliser: What is done to texts before errors are counted; auto takes Whisper's own if it is installed.
        beam: Of every decode.
        max_decodes: How often dev may be decoded for the weights.
        calibration: Utterances over which internal LMs are averaged or learned.
        overlap: A sentence that shares this many words in a row with dev is left out of the text; 0 leaves none out,
            for domains where everybody says the same phrases.
        batch_seconds: Seconds of audio that are decoded at once.
        smoothing: Errors are averaged over weights ± this much, so that a lucky narrow pit is not chosen.
        seed: Of every draw.
    """

    style: Style = "restore"
    order: int = 4
    prune: tuple[int, ...] = (0, 0, 1)
    internal: str = "auto"
    normaliser: str = "auto"
    beam: int = 8
    max_decodes: int = 4
    calibration: int = 40
    overlap: int = 8
    batch_seconds: float = 240.0
    smoothing: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if self.internal != "auto" and self.internal not in ESTIMATORS:
            raise BadInputError(f"internal is auto or one of {', '.join(ESTIMATORS)}, not {self.internal!r}")
        if self.style not in get_args(Style):
            raise BadInputError(f"style is one of {', '.join(get_args(Style))}, not {self.style!r}")
        if self.calibration < 2:
            raise BadInputError(f"calibration needs at least 2 utterances, got {self.calibration}")


@dataclass(frozen=True)
class Adapted:
    """What adaptation found.

    Attributes:
        domain: The folder's card.
        before, after: Dev without and with fusion; None without dev.
        tuning: The tuning of the chosen internal LM; None without dev.
        ranking: Errors that each internal LM promised on the n-best lists.
    """

    domain: Domain
    before: Measurement | None = None
    after: Measurement | None = None
    tuning: TuningResult | None = None
    ranking: dict[str, float] = field(default_factory=dict)


def adapt(
    model: TransformerAED,
    name: str,
    text: Sequence[str],
    out: Path,
    *,
    dev: Sequence[Utterance] = (),
    lm: TokenScorer | None = None,
    lm_name: str = "",
    model_options: Mapping[str, Any] | None = None,
    options: AdaptOptions | None = None,
    say: Say = lambda line: None,
) -> Adapted:
    """Adapts a model and writes the domain folder.

    Args:
        model: The model.
        name: Hub id, folder or file it came from; the folder names it.
        text: Text files or globs of the domain.
        out: The folder to write.
        dev: Transcribed speech of the domain; without it, weights of other domains are used, untested.
        lm: An LM over the model's tokens, in place of one trained on `text`; over folded ones if the style is fold.
        lm_name: Where that LM is.
        model_options: What the model was loaded with.
        options: How.
        say: Called with one line for each thing done.
    """
    began = time.perf_counter()
    options = options or AdaptOptions()
    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"ilme": _version(), "seed": options.seed}
    if lm is None:
        lm, about = train_domain_lm(model, text, [u.text for u in dev], out / LM, options, say)
        report["text"] = about
    domain = Domain(
        name, dict(model_options or {}), lm=lm_name or LM, style=options.style, search=search_options(options.beam)
    )
    if not dev:
        return _without_dev(model, domain, options, out, report, say)
    found = _with_dev(model, domain, lm, dev, options, say)
    report |= found.domain.report | {"seconds": round(time.perf_counter() - began, 1)}
    domain = replace(found.domain, report=report)
    domain.save(out)
    if found.tuning is not None:
        found.tuning.save(out / "tuning.json")
    internal = found.internal
    if internal is not None:
        write_tensors(out / INTERNAL, internal.tensors)
    return Adapted(domain, found.before, found.after, found.tuning, found.ranking)


def train_domain_lm(
    model: TransformerAED, text: Sequence[str], evaluation: Sequence[str], path: Path, options: AdaptOptions, say: Say
) -> tuple[NGramScorer, dict[str, Any]]:
    """An n-gram over the model's tokens, from text in the model's written style; and what went into it."""
    from ilme.lm.ngram import build_automaton
    from ilme.lm.ngram_train import NGramOptions, train_ngram

    if not text:
        raise BadInputError("no text was given: adaptation needs text of the domain, or an LM made from it")
    lines = domain_lines(
        text,
        never=unwritable(model),
        evaluation=evaluation if options.overlap else (),
        cased=options.style != "keep",
        encode=model.tokenizer.encode,
        overlap=options.overlap,
        seed=options.seed,
    )
    ids = [model.tokenizer.encode(line) for line in lines.lines]
    if options.style == "fold":
        ids = [folded for folded in map(Folds(model.tokens), ids) if folded]
    count = sum(map(len, ids))
    _check_script(lines, count)
    eos = model.tokens.eos
    flat = np.fromiter((i for y in ids for i in (*y, eos)), dtype=np.int64, count=count + len(ids))
    trained = train_ngram(flat, model.tokens, NGramOptions(options.order, options.prune[: options.order]))
    scorer = NGramScorer(
        build_automaton(trained.arpa), model.tokens, trained.arpa.missing, trained.arpa.unknown, model.device
    )
    scorer.save(path)
    about = {
        "lines": len(lines.lines),
        "words": lines.words,
        "tokens": count,
        "style": options.style,
        "recased": lines.recased,
        "left out for overlap with dev": lines.excluded,
        "order": options.order,
        "n-grams": list(trained.kept),
        "unreadable": list(lines.problems),
    }
    styled = ", given case and punctuation" if lines.recased else ""
    overlap = f"{lines.excluded} sentences left out for overlap with dev"
    say(f"text: {lines.words:,} words in {len(lines.lines):,} lines{styled}; {overlap}")
    say(f"LM: {options.order}-gram over the model's tokens, {sum(trained.kept):,} n-grams")
    return scorer, about


def unwritable(model: TransformerAED) -> list[str]:
    """Single characters that the model's output layer never puts out, alone or after a space."""
    blocked = {i for i, value in enumerate(model.allowed.tolist()) if value < 0}
    pieces = {p.removeprefix("Ġ").removeprefix("▁"): i for i, p in enumerate(model.tokens.pieces) if i in blocked}
    return [p for p in pieces if len(p) == 1 and not p.isalnum() and p.isascii() and p not in "-'"]


def _check_script(text: PreparedText, tokens: int) -> None:
    """Text that needs a token for nearly every letter is in a script or language that the model does not write."""
    letters = sum(len(line) for line in text.lines)
    if tokens > 0.55 * letters:
        raise BadInputError(
            f"the text needs {tokens / max(text.words, 1):.1f} tokens per word (English needs about 1.3): it seems to "
            "be in a language or script that this model does not write"
        )


@dataclass(frozen=True)
class _Found:
    domain: Domain
    before: Measurement
    after: Measurement
    tuning: TuningResult | None
    internal: TransformerILM | None
    ranking: dict[str, float]


def _without_dev(
    model: TransformerAED, domain: Domain, options: AdaptOptions, out: Path, report: dict[str, Any], say: Say
) -> Adapted:
    name = SAFE_INTERNAL if options.internal == "auto" else options.internal
    if name not in WITHOUT_SPEECH:
        raise BadInputError(f"the internal LM {name!r} needs speech: give --dev, or choose {', '.join(WITHOUT_SPEECH)}")
    write_tensors(out / INTERNAL, estimate(name, model).tensors)
    note = (
        f"no dev speech: weights learned on {SAFE_DOMAINS} are used (λ_T {SAFE_WEIGHTS.lm}, μ "
        f"{SAFE_WEIGHTS.subtracted}, internal LM {name}); whether they help this domain has not been measured"
    )
    say(note)
    domain = replace(domain, weights=SAFE_WEIGHTS, internal=name, report=report | {"note": note})
    domain.save(out)
    return Adapted(domain)


def _with_dev(
    model: TransformerAED,
    domain: Domain,
    lm: TokenScorer,
    dev: Sequence[Utterance],
    options: AdaptOptions,
    say: Say,
) -> _Found:
    references = {u.id: u.text for u in dev}
    speakers = {u.id: u.speaker for u in dev}
    if len(set(speakers.values())) < FEW_SPEAKERS:
        speakers = {}  # too few to resample: utterances are resampled instead
    normaliser = choose_normaliser(options.normaliser)
    cache = EncoderCache()
    folds = Folds(model.tokens, model.device) if options.style == "fold" else None
    lm = FoldedScorer(lm, folds) if folds is not None else lm
    decoding = DecodingOptions(batch_seconds=options.batch_seconds, cache="none")

    def decoder(internal: TransformerILM | None) -> SearchDecoder:
        subtracted = fold_internal(internal, folds) if internal is not None and folds is not None else internal
        recogniser = AdaptedRecogniser(model, lm=lm, subtracted=subtracted, options=domain.search, cache=cache)
        return SearchDecoder(recogniser, dev, options=decoding)

    def measured(lists: Mapping[str, NBest]) -> Measurement:
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        return measure(references, texts, speakers=speakers, normaliser_name=normaliser)

    lists = decoder(None).decode(FusionWeights(), options.beam)
    before = measured(lists)
    say(f"dev without LM: WER {before.rate:.2f} on {len(dev)} utterances")
    calibration = calibrate(model, dev[: options.calibration], lists, cache)
    internal, ranking = choose_internal(
        model, calibration, lists, references, normaliser, domain.search, options, folds
    )
    say("internal LMs, errors left on the lists: " + ", ".join(f"{n} {e:.0f}" for n, e in ranking.items()))
    search = RememberedDecodes(decoder(internal))
    search.know(FusionWeights(), options.beam, lists)
    found = tune(
        search,
        references,
        options=TuningOptions(
            beam=options.beam,
            max_decodes=options.max_decodes,
            normaliser=normaliser,
            smoothing=options.smoothing,
            length_exponent=domain.search.length_normalisation,
            seed=options.seed,
        ),
        speakers=speakers,
        on_step=lambda step: say(
            f"  λ_T {step.weights.lm:.3f}, μ {step.weights.subtracted:.3f}: WER {step.counts.rate:.2f}"
        ),
    )
    after = measured(search.decode(found.weights, options.beam))
    gained = after.total.errors < before.total.errors
    return _Found(
        replace(
            domain,
            weights=found.weights if gained else FusionWeights(),
            internal=internal.name if gained else "",
            report=_dev_report(before, after if gained else before, gained, found, ranking, normaliser),
        ),
        before,
        after if gained else before,
        found,
        internal if gained else None,
        ranking,
    )


def calibrate(
    model: TransformerAED, utterances: Sequence[Utterance], lists: Mapping[str, NBest], cache: EncoderCache
) -> Calibration:
    """Encoder outputs of a few utterances with the model's own transcripts of them."""
    hidden, labels = [], []
    encoder = AdaptedRecogniser(model, cache=cache)
    for u in utterances:
        encoded = encoder.encode([u.samples(16_000)])
        mask = encoded["mask"]
        hidden.append(encoded["hidden"][0] if mask is None else encoded["hidden"][0][mask[0]])
        labels.append(lists[u.id][0].tokens)
    return Calibration(hidden, labels)


def choose_internal(
    model: TransformerAED,
    calibration: Calibration,
    lists: Mapping[str, NBest],
    references: Mapping[str, str],
    normaliser: NormaliserName,
    search: AttentionOptions,
    options: AdaptOptions,
    folds: Folds | None = None,
) -> tuple[TransformerILM, dict[str, float]]:
    """The internal LM whose best weights leave the fewest errors on the n-best lists, and the errors of each."""
    names = list(ESTIMATORS) if options.internal == "auto" else [options.internal]
    candidates: dict[str, TransformerILM] = {}
    ranking: dict[str, float] = {}
    for name in names:
        candidates[name] = estimate(name, model, calibration)
        scorer = candidates[name] if folds is None else fold_internal(candidates[name], folds)
        filled = complete(lists, subtracted=SequenceScorer(scorer, finish=search.lm_eos, rows=256))
        built = build_lists(filled, references, normaliser_name=normaliser, length_exponent=search.length_normalisation)
        best = search_weights(
            built,
            WeightSpace(),
            objective=Objective(smoothing=options.smoothing),
            starts=[as_vector(SAFE_WEIGHTS)],
            seed=options.seed,
        )
        ranking[name] = round(best.objective, 2)
    ranking = dict(sorted(ranking.items(), key=lambda item: item[1]))
    return candidates[next(iter(ranking))], ranking


def choose_normaliser(name: str) -> NormaliserName:
    """The named normaliser; auto is Whisper's own where it is installed, else the spoken form."""
    if name != "auto":
        return name  # type: ignore[return-value]
    import importlib.util

    return "whisper" if importlib.util.find_spec("whisper_normalizer") else "spoken"


def _dev_report(
    before: Measurement,
    after: Measurement,
    gained: bool,
    found: TuningResult,
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
        "decodes": found.decodes,
    }
    if not gained:
        report["note"] = (
            "no weights made fewer errors on dev than no fusion at all, so the weights are zero and the model runs as "
            "it was: the text may be unlike the speech, too little, or the model may know the domain already"
        )
    return report


def _row(measured: Measurement) -> dict[str, Any]:
    interval = bootstrap_interval(measured, replicates=2000)
    return {
        "WER": round(measured.rate, 3),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        **{k: v for k, v in asdict(measured.total).items() if k != "hits"},
    }


def _version() -> str:
    from importlib.metadata import version

    return f"{version('ilme')}, torch {torch.__version__}"
