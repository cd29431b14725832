"""One system on a test set: decode, oracle, and the stories of a few utterances."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ilme.data.utterances import Utterance, unique_by_id
from ilme.errors import BadInputError
from ilme.evaluation.analysis import oracle, search_errors
from ilme.evaluation.contributions import explain, forced
from ilme.evaluation.metrics import NormaliserName, normaliser
from ilme.evaluation.results import System
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.loading import Parts, describe, load_recogniser, run_time_parameters
from ilme.recogniser.recogniser import Recogniser
from ilme.search.attention import AttentionOptions
from ilme.search.hypothesis import NBest
from ilme.search.transducer import TransducerOptions
from ilme.tuning.tuner import Decoder

__all__ = ["DecoderPlan", "Plan", "decode_system", "evaluate_system", "measured_system"]


@dataclass(frozen=True)
class Plan:
    """What is evaluated, and under which name.

    Attributes:
        label: Name of the model.
        method: Name of the method.
        beam: Of the search.
        normaliser: Of the texts.
        tuning: Where the weights come from; None fuses nothing.
        details: How many utterances to explain label by label.
        search_errors: How many utterances to split into search errors and model errors, by scoring the reference.
    """

    label: str
    method: str
    beam: int
    normaliser: NormaliserName
    tuning: TuningResult | None = None
    details: int = 12
    search_errors: int = 0

    @property
    def weights(self) -> FusionWeights:
        return self.tuning.weights if self.tuning else FusionWeights()

    def tuned(self, tuning: TuningResult) -> Plan:
        """The same with the weights, method, beam and normaliser of a tuning."""
        return replace(self, method=tuning.method, beam=tuning.beam, normaliser=tuning.normaliser, tuning=tuning)


@dataclass(frozen=True)
class DecoderPlan:
    """All that another process needs to make the decoder again.

    Attributes:
        parts: The model and its scorers.
        utterances: The set.
        folder: Where n-best lists are written as they finish.
        about: What a folder of earlier results must match.
        decoding: Batches and cache.
        transducer: Search options of a transducer.
        attention: Search options of an attention decoder.
    """

    parts: Parts
    utterances: tuple[Utterance, ...]
    folder: Path
    about: Mapping[str, Any]
    decoding: DecodingOptions
    transducer: TransducerOptions
    attention: AttentionOptions

    def make(
        self,
        processes: Processes,
        progress: Callable[[int, int], None] | None = None,
        recogniser: Recogniser | None = None,
    ) -> SearchDecoder:
        """The decoder, as one of these processes."""
        return SearchDecoder(
            recogniser or load_recogniser(self.parts, self.transducer, self.attention),
            self.utterances,
            folder=self.folder,
            about=self.about,
            options=self.decoding,
            processes=processes,
            progress=progress,
        )

    @contextmanager
    def decoder(
        self,
        processes: Processes,
        progress: Callable[[int, int], None] | None,
        ray_workers: int,
        recogniser: Recogniser,
    ) -> Iterator[Decoder]:
        """The decoder in this process, or over Ray's workers."""
        if not ray_workers:
            yield self.make(processes, progress, recogniser)
            return
        from ilme.recogniser.ray_decoder import RayDecoder

        with RayDecoder(self.make, ray_workers) as decoder:
            yield decoder


def decode_system(
    plan: Plan,
    parts: Parts,
    utterances: Sequence[Utterance],
    folder: Path,
    decoding: DecodingOptions,
    transducer: TransducerOptions,
    attention: AttentionOptions,
    processes: Processes,
    ray_workers: int = 0,
) -> System:
    """Loads the parts, decodes with the plan's weights (over Ray's workers, if any), and describes what came out."""
    from ilme.commands.progress import utterance_progress

    recogniser = load_recogniser(parts, transducer, attention)
    work = DecoderPlan(parts, tuple(utterances), folder, describe(parts), decoding, transducer, attention)
    with (
        utterance_progress(processes.rank == 0) as progress,
        work.decoder(processes, progress, ray_workers, recogniser) as decoder,
    ):
        return evaluate_system(plan, recogniser, decoder, utterances, first=processes.rank == 0)


def evaluate_system(
    plan: Plan, recogniser: Recogniser, decoder: Decoder, utterances: Sequence[Utterance], *, first: bool = True
) -> System:
    """Decodes once with the plan's weights; `seconds` is the wall time of that decode.

    Of several processes only the `first` explains utterances and looks for search errors.
    """
    began = time.perf_counter()
    lists = decoder.decode(plan.weights, plan.beam)
    seconds = time.perf_counter() - began
    references = {u.id: u.text for u in utterances}
    weights = plan.weights
    return System(
        model=plan.label,
        method=plan.method,
        weights=weights,
        hypotheses={i: nbest[0].text for i, nbest in lists.items()},
        dev_wer=round(plan.tuning.dev.rate, 4) if plan.tuning else None,
        parameters=run_time_parameters(recogniser, lm=weights.lm > 0, subtracted=weights.subtracted > 0),
        seconds=round(seconds, 3),
        beam=plan.beam,
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
    chosen = utterances[: plan.search_errors]
    if not chosen:
        return None
    known: dict[str, NBest] = {}
    normalise = normaliser(plan.normaliser)
    for u in chosen:
        if normalise(lists[u.id][0].text) != normalise(u.text):
            encoded = recogniser.encode([u.samples(recogniser.rate)])
            known[u.id] = [forced(recogniser, encoded, recogniser.tokenizer.encode(u.text))]
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
        if alone.tokens != chosen.tokens:
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
    for number, line in enumerate(hypotheses.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append((str(row["id"]), str(row["text"])))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInputError(f'{hypotheses}, line {number}: expected {{"id", "text"}}, got {line[:80]!r}') from error
    return System(plan.label, plan.method, plan.weights, unique_by_id(rows, str(hypotheses)), beam=plan.beam)
