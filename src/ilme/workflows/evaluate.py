"""Decode a test set once with fixed weights and describe what came out: errors, oracle, stories of utterances."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ilme.data.utterances import Utterance, references_of, unique_by_id
from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.analysis import oracle, search_errors
from ilme.evaluation.contributions import explain, forced
from ilme.evaluation.ledger import record_look
from ilme.evaluation.metrics import NormaliserName, normaliser
from ilme.evaluation.results import Results, System
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.protocols import InternalLM, TokenScorer
from ilme.recogniser.decoder import DecodingOptions, Processes
from ilme.recogniser.loading import INTERNAL, Parts
from ilme.recogniser.options import SearchSettings, changed
from ilme.recogniser.packing import run_time_parameters
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.configs import json_object
from ilme.runtime.formats import Format
from ilme.search.hypothesis import NBest
from ilme.tuning.tuner import Decoder
from ilme.workflows.decoding import Progress, Ray, check_whole, held, planned, read_set

__all__ = ["Plan", "evaluate", "evaluate_decoder", "measured_system", "method_of"]


@dataclass(frozen=True)
class Plan:
    """What is evaluated, and under which name.

    Attributes:
        label: Name of the model.
        method: Name of the method; without it the one that the weights make it.
        weights: It is decoded with.
        beam: Beam of the search; 0 takes the recogniser's own.
        normaliser: Normaliser of the texts.
        tuning: Where the weights come from; None if they were given.
        dev_wer: WER on dev with these weights; None if it was not measured.
        details: How many utterances to explain label by label.
        search_errors: How many utterances to split into search errors and model errors, by scoring the reference.
    """

    label: str
    method: str = ""
    weights: FusionWeights = field(default_factory=FusionWeights)
    beam: int = 0
    normaliser: NormaliserName = "none"
    tuning: TuningResult | None = None
    dev_wer: float | None = None
    details: int = 12
    search_errors: int = 0

    def tuned(self, tuning: TuningResult) -> Plan:
        """The same with the weights, method, beam and normaliser of a tuning."""
        return replace(
            self,
            method=tuning.method,
            weights=tuning.weights,
            beam=tuning.beam,
            normaliser=tuning.normaliser,
            tuning=tuning,
            dev_wer=round(tuning.dev.rate, 4),
        )


def evaluate(
    model: str | Path | Recogniser,
    test: str | Path | Sequence[Utterance],
    *,
    weights: TuningResult | FusionWeights | str | Path | None = None,
    lm: str = "",
    subtracted: str = INTERNAL,
    phrases: str | Path = "",
    plan: Plan | None = None,
    name: str = "",
    out: Path | None = None,
    split: str = "",
    limit: int = 0,
    device: str = "cpu",
    format: Format = "float32",
    search: SearchSettings | None = None,
    decoding: DecodingOptions | None = None,
    model_options: dict[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    hypotheses: Path | None = None,
    ledger: Path | None = None,
    processes: Processes | None = None,
    ray: Ray | None = None,
    progress: Progress | None = None,
) -> Results:
    """Decodes a test set once with fixed weights and measures it; with a folder, resumable.

    Args:
        model: As `ilme.load_model` takes it; or a recogniser, with its own scorers, weights and search options.
        test: A manifest, Lhotse cuts, a folder with either, or utterances.
        weights: What `ilme.tune` returned or saved, or weights; without them a recogniser's own, or none.
        lm: The external LM, as `ilme.load_lm` takes it.
        subtracted: What is subtracted: an internal LM by name or file, or a source-domain LM.
        phrases: A file of names and terms that may be said; their weight is the tuning's, or a safe one.
        plan: Names, beam, normaliser, details; what a tuning says goes first.
        name: Name of the test set.
        out: Folder for results.json and the decode; without it nothing is written.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        device: Where everything runs.
        format: Format of the weights on a CPU.
        search: Search options that differ from the model's own.
        decoding: Batches and cache.
        model_options: What the model's own kind takes, such as a language.
        about: What says which recogniser this is, so that a decode of another in `out` is not continued; hashes of a
            recogniser's weights if not given.
        hypotheses: Measure these texts ({"id", "text"} lines) instead of decoding.
        ledger: The file in which looks at test sets with tuned weights are counted (`ilme.evaluation.ledger`).
        processes: Which of several processes this is.
        ray: A Ray cluster that shares the work.
        progress: Called with (utterances done, of how many).
    """
    processes, utterances = processes or Processes(), read_set(test, split, limit)
    chosen: Recogniser | Parts
    if isinstance(model, Recogniser):
        check_whole(lm, subtracted)
        chosen, plan = model, _weighted(plan or Plan(type(model.model).__name__), weights, model.weights)
    else:
        plan = _weighted(plan or Plan(Path(model).name), weights, FusionWeights())
        scorer = subtracted if plan.weights.subtracted else ""
        chosen, about = Parts(str(model), lm, scorer, device, format, str(phrases)), None
    first = processes.rank == 0
    with held(out, processes, "results.json"):
        if hypotheses is not None:
            system = measured_system(plan, hypotheses)
        else:
            recogniser, work = planned(
                chosen, utterances, None if out is None else out / "decode",
                about=about, phrases=phrases, decoding=decoding, search=search, model_options=model_options,
            )  # fmt: skip
            recogniser, plan = _as_tuned(recogniser, plan, bool(phrases))
            work = replace(work, search=recogniser.options)
            with work.decoder(processes, progress, ray, recogniser) as decoder:
                system = evaluate_decoder(plan, recogniser, decoder, utterances, first=first)
        title = name or split or (Path(test).stem if isinstance(test, str | Path) else "test")
        results = Results(title, plan.normaliser, references_of(utterances), (system,))
        if out is not None and first:
            results.save(out / "results.json")
        if ledger is not None and first:  # while other runs are kept out: this one is not over before its look counts
            record_look(ledger, results)
    return results


def _as_tuned(recogniser: Recogniser, plan: Plan, listed: bool) -> tuple[Recogniser, Plan]:
    """The recogniser with the search options of the plan's tuning, and the plan with the weight of listed phrases.

    That weight is the tuning's if it was tuned, even if it is 0; else the recogniser's own, which is a safe one.
    """
    boost = plan.weights.phrases
    if plan.tuning is not None and plan.tuning.search:
        recogniser = copy(recogniser)
        recogniser.options = changed(recogniser.options, plan.tuning.search)
    if listed and not (plan.tuning is not None and plan.tuning.phrases):
        boost = boost or recogniser.weights.phrases
    return recogniser, replace(plan, weights=replace(plan.weights, phrases=boost if recogniser.listed else 0.0))


def _weighted(plan: Plan, weights: TuningResult | FusionWeights | str | Path | None, own: FusionWeights) -> Plan:
    if isinstance(weights, str | Path):
        weights = TuningResult.load(Path(weights))
    if isinstance(weights, TuningResult):
        return plan.tuned(weights)
    return replace(plan, weights=weights or (plan.weights if any(_values(plan.weights)) else own))


def _values(weights: FusionWeights) -> tuple[float, ...]:
    return weights.lm, weights.subtracted, weights.length, weights.phrases


def method_of(weights: FusionWeights, subtracted: TokenScorer | None) -> str:
    """The method that these weights make of a search: BS, SF, ILME, or DR where no internal LM is subtracted."""
    if not weights.subtracted:
        return "SF" if weights.lm else "BS"
    inner: Any = subtracted
    while inner is not None and not isinstance(inner, InternalLM):
        inner = getattr(inner, "scorer", None) or getattr(inner, "internal", None)  # time stamps, folded case
    return "DR" if inner is None else "ILME"


def evaluate_decoder(
    plan: Plan, recogniser: Recogniser, decoder: Decoder, utterances: Sequence[Utterance], *, first: bool = True
) -> System:
    """Decodes once with the plan's weights; `seconds` is the wall time of that decode.

    Of several processes only the `first` explains utterances and looks for search errors.
    """
    beam = plan.beam or recogniser.options.beam
    began = time.perf_counter()
    lists = decoder.decode(plan.weights, beam)
    seconds = time.perf_counter() - began
    references = {u.id: u.text for u in utterances}
    weights = plan.weights
    return System(
        model=plan.label,
        method=plan.method or method_of(weights, recogniser.subtracted),
        weights=weights,
        hypotheses={i: nbest[0].text for i, nbest in lists.items()},
        dev_wer=plan.dev_wer,
        parameters=run_time_parameters(recogniser, lm=weights.lm > 0, subtracted=weights.subtracted > 0),
        seconds=round(seconds, 3),
        beam=beam,
        oracle_wer=round(oracle(lists, references, normaliser_name=plan.normaliser).rate, 4),
        details=_details(plan, recogniser, lists, utterances) if first else {},
        tuning=plan.tuning,
        search_errors=_search_errors(plan, recogniser, lists, utterances) if first else None,
    )


def _search_errors(
    plan: Plan, recogniser: Recogniser, lists: Mapping[str, NBest], utterances: Sequence[Utterance]
) -> dict[str, int] | None:
    """The first utterances of the plan: right, lost by the search, or lost by the scores themselves.

    The transcript is scored by force, as the tokenizer writes it; where it scores better than what the search found,
    the search missed it.
    """
    chosen = [u for u in utterances if u.seconds <= recogniser.window][: plan.search_errors]
    if not chosen:
        return None
    known: dict[str, NBest] = {}
    normalise = normaliser(plan.normaliser)
    for u in chosen:
        if normalise(lists[u.id][0].text) != normalise(u.text):
            encoded = recogniser.encode([u.samples(recogniser.rate)])
            spoken = recogniser.tokenizer.encode(u.text)
            known[u.id] = [forced(recogniser, encoded, spoken, plan.weights)]
    references = {u.id: u.text for u in chosen}
    found = search_errors(lists, known, references, plan.weights, normaliser_name=plan.normaliser)
    return {"right": found.right, "search": found.search, "model": found.model}


def _details(
    plan: Plan, recogniser: Recogniser, lists: Mapping[str, NBest], utterances: Sequence[Utterance]
) -> dict[str, Any]:
    """Stories of the utterances where fusion changed the choice, those it mended first."""
    normalise = normaliser(plan.normaliser)
    ranked: list[tuple[int, int, Utterance]] = []
    for order, u in enumerate(utterances):
        alone = max(lists[u.id], key=lambda h: h.scores.asr)
        chosen = lists[u.id][0]
        if alone.tokens != chosen.tokens and u.seconds <= recogniser.window:
            right = normalise(chosen.text) == normalise(u.text)
            ranked.append((0 if right else 1, order, u))
    stories: dict[str, Any] = {}
    for _, _, u in sorted(ranked, key=lambda r: r[:2])[: plan.details]:
        encoded = recogniser.encode([u.samples(recogniser.rate)])
        stories[u.id] = explain(recogniser, encoded, lists[u.id], plan.weights, u.text)
    return stories


def measured_system(plan: Plan, hypotheses: Path) -> System:
    """A system whose texts another program wrote: lines of {"id", "text"}."""
    rows = []
    for number, line in enumerate(hypotheses.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json_object(line, hypotheses)
            rows.append((str(row["id"]), str(row["text"])))
        except (CheckpointError, KeyError) as error:
            shown = line[:80].decode("utf-8", "backslashreplace")
            halved = ", and no lone surrogate" if "surrogate" in str(error) else ""
            raise BadInputError(
                f'{hypotheses}, line {number}: expected {{"id", "text"}} in UTF-8{halved}, got {shown!r}'
            ) from error
    return System(plan.label, plan.method or "BS", plan.weights, unique_by_id(rows, str(hypotheses)), beam=plan.beam)
