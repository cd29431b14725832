"""Adapts a model to a domain, from text alone.

    text in the model's own style → LM over its tokens → dev decoded once → every internal LM scores the n-best lists
      → the best of them, and the weights, are tuned in the search → dev decoded once more → a domain folder

Nothing is made worse in silence: if no weights make fewer errors on dev than none, the folder says so and its weights
are zero. The folder appears when all of it is there; one that was there before is replaced as a whole.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ilme import __version__
from ilme.data.text import evaluation_texts
from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.evaluation.metrics import Measurement, NormaliserName, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.ilm import Calibration, internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.lm.phrase_list import Phrase, PhraseLike, as_phrases, read_phrases, write_phrases
from ilme.protocols import InternalLM, TokenScorer
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import SearchDecoder
from ilme.recogniser.domain import CARD, INTERNAL, LM, PHRASES, Domain
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import Options, default_options, safe_boost
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import replace_folder, write_text
from ilme.runtime.formats import Format
from ilme.runtime.locks import only_run
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.error_surface import as_vector, build_lists
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import Objective, WeightSpace, search_weights
from ilme.workflows.card import card_text
from ilme.workflows.decoding import batches_for, read_set
from ilme.workflows.dev_check import unexplained
from ilme.workflows.domain_lm import LMOptions, keep_lm, read_domain_text, text_writer
from ilme.workflows.lm_choice import KINDS, choose_lm, work_folder
from ilme.workflows.options import AdaptOptions, Style
from ilme.workflows.phrases import boost_on_dev
from ilme.workflows.tune import FEW_SPEAKERS, tune_decoder

__all__ = ["AdaptOptions", "Adapted", "adapt", "safe_choice"]

RANKS = "ranks.tiktoken"
SAFE_DOMAINS = "audiobooks, telephone calls and voice commands"
LENGTH_OF_TRANSDUCERS = (0.0, 1.5)  # β has to make up for what an LM takes from each label; decoders rank by the mean
OURS = (CARD, LM, INTERNAL, PHRASES, RANKS, "card.md", "tuning.json")
KEPT = re.compile(r"lm(-\d+)?(\.[\w.]+)?")  # an LM that was given by name
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


def adapt(
    model: str | Path,
    text: Sequence[str],
    out: str | Path,
    *,
    dev: str | Path | Sequence[Utterance] = (),
    split: str = "",
    limit: int = 300,
    lm: str = "auto",
    minutes: float = 0.0,
    phrases: str | Path | Sequence[PhraseLike] = (),
    device: str = "cpu",
    format: Format = "float32",
    model_options: Mapping[str, Any] | None = None,
    options: AdaptOptions | None = None,
    host: Any = None,
    say: Say = lambda line: None,
) -> Adapted:
    """Adapts a model and writes the domain folder.

    Args:
        model: As `ilme.load_model` takes it; the folder names it.
        text: Text files or globs of the domain.
        out: The folder to write; one that `ilme adapt` wrote before is replaced.
        dev: Transcribed speech of the domain; without it, weights of other domains are used, untested.
        split: Only dev utterances whose split is this.
        limit: At most this many dev utterances, drawn at random; 0 takes all.
        lm: The LM that is trained on `text`: `ngram`, `lstm`, `decoder` (the model's own), or `auto`, which trains what
            `minutes` allow and keeps what predicts held-out lines best. Or the name of one that is there, as `load_lm`
            takes it, in place of all that; over folded tokens if the style is fold.
        minutes: For training neural LMs; 0 trains the n-gram alone, or for 5 minutes a network that `lm` names. A run
            that was killed goes on where it was when it is started again.
        phrases: Names and terms that may be said: a file, or a list; the folder keeps them.
        device: Where everything runs.
        format: Of the weights on a CPU.
        model_options: What the model's own kind takes, such as a language.
        options: How.
        host: The model, if it is loaded already.
        say: Called with one line for each thing done.
    """
    began = time.perf_counter()
    options, out = options or AdaptOptions(), Path(out)
    named = "" if lm in KINDS else lm
    if not text and not named:
        raise BadInputError("no text was given: adaptation needs text of the domain, or an LM made from it")
    if limit < 0:
        raise BadInputError(f"limit must not be negative, got {limit}; 0 takes all")
    _check_replaceable(out)
    listed = read_phrases(phrases) if isinstance(phrases, str | Path) and phrases else as_phrases(phrases or ())  # type: ignore[arg-type]
    utterances = _drawn(read_set(dev, split), limit, options.seed)
    if host is None:
        host = load_model(model, device, **(model_options or {}))
    scorer = load_lm(named, host) if named else None
    if host.device.type == "cpu":
        pack_networks(host, (scorer,), format)
    _check_internal(host, options.internal, bool(utterances))
    style = style_for(host, options.style)
    with only_run(out), replace_folder(out) as folder:
        report: dict[str, Any] = {"ilme": _version(), "seed": options.seed}
        if scorer is None:
            spoken = [u.text for u in utterances] + evaluation_texts(options.exclude, _unreadable)
            lm_options = LMOptions(style, options.order, options.prune, options.overlap, options.seed, options.joined)
            read = read_domain_text(host, text, spoken, lm_options, say)
            chosen = choose_lm(lm, host, read, folder, work_folder(out), minutes, lm_options, say)
            scorer, report["text"], report["lm"] = chosen.scorer, read.about, chosen.about
            if host.device.type == "cpu":
                pack_networks(host, (scorer,), format)
        domain = Domain(
            _lasting(model),
            _kept_options(model_options or {}, folder),
            host.kind,
            search=default_options(host, options.beam),
            lm=keep_lm(named, folder) if named else chosen.name,
            style=style,
        )
        if utterances:
            found = _with_dev(host, domain, scorer, utterances, listed, options, say)
        else:
            found = _without_dev(host, domain, listed, options, say)
        if listed:
            write_phrases(folder / PHRASES, listed)
        report |= found.domain.report | {"seconds": round(time.perf_counter() - began, 1)}
        found = replace(found, domain=replace(found.domain, report=report))
        written = _written(found, folder, out.name)
    shutil.rmtree(work_folder(out), ignore_errors=True)
    return written


def style_for(host: Any, style: Style) -> Style:
    """`auto` is what the model writes: with case, or words as they are said."""
    if style != "auto":
        return style
    letters = [c for piece in host.tokens.pieces if not piece.startswith("<") for c in piece if c.isalpha()]
    return "restore" if any(c.isupper() for c in letters) and any(c.islower() for c in letters) else "spoken"


def safe_choice(host: Any) -> tuple[str, FusionWeights]:
    """The internal LM and the weights for a model without dev speech.

    The weights whose worst domain was best on n-best lists, with an internal LM that needs no speech: measured for
    Transformers in experiments/safe_weights.py, where no domain got worse in the search. A transducer, and the paper's
    AED, take theirs from the tunings of docs/results: about half of what dev chose, since too little costs less than
    too much.
    """
    name = internal_lm.default(host)
    if hasattr(host, "join") or hasattr(host, "emit"):
        return name, FusionWeights(lm=0.3, subtracted=0.1, length=0.6)
    if host.kind == "aed":
        return name, FusionWeights(lm=0.15, subtracted=0.075)
    return name, FusionWeights(lm=0.25, subtracted=0.125)


def _is_measured(host: Any) -> bool:
    """Whether the weights of `safe_choice` were measured for such a model: for the Transformers."""
    return not (hasattr(host, "join") or hasattr(host, "emit") or host.kind == "aed")


def _check_replaceable(out: Path) -> None:
    """A folder is replaced only if it is a domain folder and holds nothing else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise BadInputError(f"{out} is a file; name a folder with --out")
    foreign = sorted(p.name for p in out.iterdir() if p.name not in OURS and not KEPT.fullmatch(p.name))
    if foreign:
        raise BadInputError(f"{out} holds {foreign[0]}, which no domain folder has: choose another folder with --out")


def _check_internal(host: Any, name: str, has_dev: bool) -> None:
    known = internal_lm.available(host)
    if name != "auto" and name not in known:
        raise BadInputError(f"internal is auto or one of {', '.join(known)}, not {name!r}")
    if name != "auto" and not has_dev and internal_lm.needs(host, name) != "nothing":
        free = [n for n in known if internal_lm.needs(host, n) == "nothing"]
        raise BadInputError(f"the internal LM {name!r} needs speech: give --dev, or choose {', '.join(free)}")


def _unreadable(name: str, reason: str) -> None:
    """A test set that cannot be kept out is an error: its results would be worth nothing."""
    raise BadInputError(f"options.exclude: {name}: {reason}")


def _drawn(utterances: list[Utterance], limit: int, seed: int) -> list[Utterance]:
    if not limit or len(utterances) <= limit:
        return utterances
    chosen = random.Random(seed).sample(range(len(utterances)), limit)
    return [utterances[i] for i in sorted(chosen)]


def _lasting(name: str | Path) -> str:
    """A name that means the same from every folder: a path in full, a hub id as it is.

    Links are not followed: what a model needs beside it stands beside the link.
    """
    return str(Path(name).absolute()) if Path(name).exists() else str(name)


def _kept_options(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The model's own options; a file among them is copied into the folder."""
    kept = dict(options)
    if kept.get("ranks"):
        shutil.copyfile(kept["ranks"], folder / RANKS)
        kept["ranks"] = RANKS
    return kept


def _written(found: Adapted, folder: Path, name: str) -> Adapted:
    """Puts what was found into the folder, the card last."""
    if found.internal is not None:
        save_internal_lm(folder / INTERNAL, found.internal)
    if found.tuning is not None:
        found.tuning.save(folder / "tuning.json")
    write_text(folder / "card.md", card_text(found, name))
    return replace(found, domain=found.domain.save(folder))


def _without_dev(host: Any, domain: Domain, phrases: Sequence[Phrase], options: AdaptOptions, say: Say) -> Adapted:
    name, weights = safe_choice(host)
    weights = replace(weights, phrases=safe_boost(host) if phrases else 0.0)
    name = name if options.internal == "auto" else options.internal
    where = f"weights learned on {SAFE_DOMAINS}" if _is_measured(host) else "cautious weights"
    note = (
        f"no dev speech: {where} are used (λ_T {weights.lm}, μ {weights.subtracted}, β {weights.length}, internal LM "
        f"{name}); whether they help this domain has not been measured"
    )
    say(note)
    return Adapted(
        replace(domain, weights=weights, internal=name, report={"note": note}), internal=internal_lm(host, name)
    )


def _with_dev(
    host: Any,
    domain: Domain,
    lm: TokenScorer,
    dev: Sequence[Utterance],
    phrases: Sequence[Phrase],
    options: AdaptOptions,
    say: Say,
) -> Adapted:
    references = {u.id: u.text for u in dev}
    speakers = {u.id: u.speaker for u in dev}
    if len(set(speakers.values())) < FEW_SPEAKERS:
        speakers = {}  # too few to resample: utterances are resampled instead
    normaliser = choose_normaliser(options.normaliser)
    search: Options = domain.search or default_options(host, options.beam)
    cache = EncoderCache()
    folds = Folds(host.tokens, host.device) if domain.style == "fold" else None
    lm = FoldedScorer(lm, folds) if folds is not None else lm
    decoding = batches_for(host.device, options.batch_seconds)

    def decoder(internal: InternalLM | None) -> SearchDecoder:
        subtracted = fold_internal(internal, folds) if internal is not None and folds is not None else internal
        recogniser = Recogniser(host, lm=lm, subtracted=subtracted, options=search, cache=cache)
        return SearchDecoder(recogniser, dev, options=decoding)

    def measured(lists: Mapping[str, NBest]) -> Measurement:
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        return measure(references, texts, speakers=speakers, normaliser_name=normaliser)

    plain = decoder(None)
    lists = plain.decode(FusionWeights(), search.beam)
    write = text_writer(host, domain.style)
    aside = unexplained(plain.recogniser, dev, lists, normaliser, write)
    if aside:
        say(f"dev: {len(aside)} of {len(dev)} utterances are set aside; the first: {aside[0].id}: {aside[0].reason}")
        out = {u.id for u in aside}
        dev = [u for u in dev if u.id not in out]
        lists = {u.id: lists[u.id] for u in dev}
        references = {u.id: u.text for u in dev}
        speakers = {i: s for i, s in speakers.items() if i not in out}
    before = measured(lists)
    say(f"dev without LM: WER {before.rate:.2f} on {len(dev)} utterances")
    chosen = [u for u in dev if u.seconds <= plain.recogniser.window][: options.calibration]
    calibration = plain.recogniser.calibrate(
        (u.samples(plain.recogniser.rate) for u in chosen), [lists[u.id][0].tokens for u in chosen]
    )
    told = Calibration(labels=[nbest[0].tokens for nbest in lists.values()])
    space = WeightSpace(length=LENGTH_OF_TRANSDUCERS) if plain.recogniser.frame_synchronous else WeightSpace()
    ranker = _Ranker(lists, references, normaliser, plain.recogniser, space, options, folds)
    internal, ranking = ranker.best(host, calibration, told)
    say("internal LMs, errors left on the lists: " + ", ".join(f"{n} {e:.0f}" for n, e in ranking.items()))
    fused = decoder(internal)
    cached = CachedDecoder(fused)
    cached.know(FusionWeights(), search.beam, lists)
    heard = [replace(u, speaker=speakers.get(u.id, "")) for u in dev]
    found = tune_decoder(
        cached,
        fused.recogniser,
        heard,
        TuningOptions(
            space=space,
            background=options.background,
            beam=search.beam,
            max_decodes=options.max_decodes,
            normaliser=normaliser,
            smoothing=options.smoothing,
            seed=options.seed,
        ),
        lambda step: say(
            f"  λ_T {step.weights.lm:.3f}, μ {step.weights.subtracted:.3f}, β {step.weights.length:.2f}: "
            f"WER {step.counts.rate:.2f}"
        ),
    )
    after = measured(cached.decode(found.weights, search.beam))
    gained = after.total.errors < before.total.errors
    weights, after = (found.weights, after) if gained else (FusionWeights(), before)
    chosen_lm = internal if weights.subtracted else None  # an internal LM with weight 0 is none
    told_of = {"set aside": {u.id: u.reason for u in aside}} if aside else {}
    if phrases:
        expecting = SearchDecoder(fused.recogniser.with_phrases(phrases), dev, options=decoding)
        best, told_of["phrases"] = boost_on_dev(
            lambda w: expecting.decode(w, search.beam), expecting.recogniser, heard, phrases, weights, normaliser, say
        )
        weights, after = replace(weights, phrases=best.boost), best.measured or after
    return Adapted(
        replace(
            domain,
            weights=weights,
            internal="" if chosen_lm is None else chosen_lm.how,
            report=_dev_report(before, after, gained, found, ranking, normaliser) | told_of,
        ),
        before,
        after,
        found,
        chosen_lm,
        ranking,
    )


@dataclass(frozen=True)
class _Ranker:
    """Ranks internal LMs by the errors that the best weights of each leave on the n-best lists."""

    lists: Mapping[str, NBest]
    references: Mapping[str, str]
    normaliser: NormaliserName
    recogniser: Recogniser
    space: WeightSpace
    options: AdaptOptions
    folds: Folds | None

    def best(self, host: Any, calibration: Calibration, told: Calibration) -> tuple[InternalLM, dict[str, float]]:
        """The best internal LM, and the errors of each; `told` is what those read that need no speech."""
        names = internal_lm.available(host) if self.options.internal == "auto" else (self.options.internal,)
        candidates: dict[str, InternalLM] = {}
        for name in names:
            needs = internal_lm.needs(host, name)
            candidates[name] = internal_lm(host, name, calibration=told if needs == "transcripts" else calibration)
        ranking = {name: self.errors(scorer) for name, scorer in candidates.items()}
        ranking = dict(sorted(ranking.items(), key=lambda item: item[1]))
        return candidates[next(iter(ranking))], ranking

    def errors(self, internal: InternalLM) -> float:
        scorer = internal if self.folds is None else fold_internal(internal, self.folds)
        end = self.recogniser.ends["subtracted"]
        filled = complete(self.lists, subtracted=SequenceScorer(scorer, finish=end, rows=256))
        built = build_lists(
            filled,
            self.references,
            normaliser_name=self.normaliser,
            length_exponent=self.recogniser.length_exponent,
        )
        best = search_weights(
            built,
            self.space,
            objective=Objective(smoothing=self.options.smoothing),
            starts=[as_vector(safe_choice(internal.host)[1])],
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
    return f"{__version__}, torch {torch.__version__}"
