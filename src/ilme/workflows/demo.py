"""The demonstration's second act: bundled models decode bundled synthetic speech, and the paper's table comes out.

Nothing is stored that is not measured again here, but the weights (found on dev when the bundle was made) and the dev
WERs; `retune` finds and measures those again too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import torch

from ilme.data.utterances import Utterance, in_memory, references_of
from ilme.errors import BadInputError, UsageError
from ilme.evaluation.results import Results, System
from ilme.evaluation.tables import Table, main_table
from ilme.evaluation.tuning_result import Method
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_recogniser
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_text
from ilme.runtime.processes import cores, in_processes
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.bundle import Bundle, BundledSystem, Unpacked, read_bundle
from ilme.workflows.evaluate import Plan, evaluate_decoder
from ilme.workflows.tune import tune_decoder

__all__ = [
    "DemoOptions",
    "Example",
    "SystemRun",
    "examples",
    "model_tables",
    "run_demo",
    "use_threads",
    "write_demo_report",
]

METHODS = ("BS", "SF", "DR", "ILME")  # the paper's
FURTHER = ("ILME-learned",)  # decoded only when they are asked for
SLOWEST_FIRST = ("DR", "ILME-learned", "ILME", "SF", "BS")
MODELS = ("rnnt", "aed")
TITLES = {"rnnt": "RNN-T", "aed": "AED"}
COLUMNS = {  # of the whole table, and what they are called where there is little room
    "Method": "Method", "Params (M)": "Params", "λ_T": "λ_T", "μ": "μ", "Dev WER": "Dev", "Test WER": "Test",
    "95 % interval": "95 %", "vs BS (%)": "vs BS",
}  # fmt: skip
SIZE = 1  # the place of the parameters among them
RATE = 16000
BATCHES = DecodingOptions(batch_seconds=240.0, batch_size=32, cache="cpu")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DemoOptions:
    """What to decode.

    Attributes:
        model: `whisper`, `rnnt`, `aed` or `all`.
        method: BS, SF, DR, ILME, or `all` of these; or ILME-learned. Whisper has no DR and no ILME-learned.
        beam: Beam of the search; 0 takes the bundle's.
        utterances: Test utterances; 0 takes all.
        retune: Find the weights again on the bundled dev set, instead of using those stored.
        threads: Threads of each operation; the networks are so small that one is fastest. 0 takes one for each core.
        processes: Systems decoded side by side, each in a process. 0 takes one for each core, fewer with more threads.
        details: Utterances of each system that the report explains label by label.
    """

    model: str = "all"
    method: str = "all"
    beam: int = 0
    utterances: int = 0
    retune: bool = False
    threads: int = 1
    processes: int = 0
    details: int = 2

    def __post_init__(self) -> None:
        for name, known in (("model", ("whisper", *MODELS)), ("method", METHODS + FURTHER)):
            if getattr(self, name) not in (*known, "all"):
                raise BadInputError(f"{name} must be {', '.join(known)} or all, got {getattr(self, name)!r}")
        if min(self.beam, self.utterances, self.threads, self.processes) < 0:
            raise UsageError("beam, utterances, threads and processes must not be negative")

    def wants(self, system: BundledSystem) -> bool:
        named = METHODS if self.method == "all" else (self.method,)
        return self.model in (system.model, "all") and system.method in named

    def at_a_time(self) -> int:
        """Most systems that are decoded at the same time."""
        return self.processes or max(1, cores() // (self.threads or cores()))


@dataclass(frozen=True)
class Example:
    """An utterance that ILME has right and SF wrong."""

    model: str
    id: str
    reference: str
    fused: str
    ilme: str


def run_demo(
    out: Path,
    options: DemoOptions | None = None,
    bundle: Bundle | None = None,
    progress: Callable[[str], Progress | None] = lambda name: None,
) -> Results:
    """Decodes the bundled test set with every system wanted; writes OUT/results.json.

    Args:
        out: Folder for results, and for the bundle unpacked.
        options: What to decode.
        bundle: The one that ships with the package by default.
        progress: Called with a system's name; what it returns is called with (utterances done, of how many).
    """
    options, bundle = options or DemoOptions(), bundle or read_bundle()
    unpacked = bundle.unpack(out)
    listed = unpacked.utterances("test")[: options.utterances or None]
    wanted = sorted(filter(options.wants, bundle.systems), key=lambda s: SLOWEST_FIRST.index(s.method))
    decoded = in_processes(
        SystemRuns(unpacked, options, listed),
        wanted,
        options.at_a_time(),
        lambda entry: progress(f"{entry.model} {entry.method}"),
    )
    found = dict(zip(wanted, decoded, strict=True))
    results = Results(
        "novels, synthetic speech",
        "none",
        references_of(listed),
        tuple(found[entry] for entry in bundle.systems if entry in found),
        {"bundle": bundle.study, "beam": options.beam or bundle.beam, "retuned": options.retune},
    )
    results.save(out / "results.json")
    return results


def examples(results: Results, most: int = 3) -> list[Example]:
    """Utterances that ILME has wholly right and SF has not, those first where SF was most wrong."""
    found: list[tuple[int, Example]] = []
    for model in MODELS:
        measured = [results.measurements.get(f"{model} {method}") for method in ("SF", "ILME")]
        if measured[0] is None or measured[1] is None:
            continue
        own = []
        for fused, ilme in zip(measured[0].utterances, measured[1].utterances, strict=True):
            if ilme.counts.errors == 0 and fused.counts.errors:
                example = Example(model, ilme.id, ilme.reference, fused.hypothesis, ilme.hypothesis)
                own.append((fused.counts.errors, example))
        found += sorted(own, key=lambda pair: (-pair[0], pair[1].id))[:most]
    return [example for _, example in found]


def model_tables(results: Results) -> list[Table]:
    """The paper's table for each model, in columns that fit a terminal."""
    found = []
    for model in dict.fromkeys(system.model for system in results.systems):
        own = replace(results, systems=tuple(s for s in results.systems if s.model == model))
        whole = main_table(own)
        kept = [whole.columns.index(name) for name in COLUMNS]
        if len({row[kept[SIZE]] for row in whole.rows}) == 1:  # an n-gram has none: a column that says nothing
            del kept[SIZE]
        rows = tuple(tuple(row[i] for i in kept) for row in whole.rows)
        about = "word error rate (%), change against BS in per cent, parameters in millions"
        title = f"{TITLES.get(model, model)} on {results.name}: {about}"
        found.append(replace(whole, title=title, columns=tuple(COLUMNS[whole.columns[i]] for i in kept), rows=rows))
    return found


@dataclass
class SystemRuns:
    """Decodes the test set with one system after another; those of one model share its encoder outputs.

    Attributes:
        unpacked: The bundle.
        options: Beam, retuning, threads, details.
        listed: The test set.
    """

    unpacked: Unpacked
    options: DemoOptions
    listed: Sequence[Utterance]
    _decoders: dict[str, SearchDecoder] = field(default_factory=dict)

    def __call__(self, entry: BundledSystem, progress: Progress | None) -> System:
        use_threads(self.options.threads)
        return SystemRun(self.unpacked, entry, self.options, progress).run(self._test, self._decoders)

    @cached_property
    def _test(self) -> list[Utterance]:
        return in_memory(self.listed, RATE)


@dataclass
class SystemRun:
    """One system of the bundle, ready to decode.

    Attributes:
        unpacked: The bundle.
        entry: The system.
        options: Beam, retuning, details.
        progress: Called with (utterances done, of how many).
    """

    unpacked: Unpacked
    entry: BundledSystem
    options: DemoOptions
    progress: Progress | None = None

    def run(self, test: Sequence[Utterance], decoders: dict[str, SearchDecoder]) -> System:
        """Decodes; `decoders` holds the first decoder of each model, whose encoder outputs the others take over."""
        entry, beam = self.entry, self.options.beam or self.unpacked.bundle.beam
        recogniser = _recogniser(self.unpacked, entry)
        weights, dev_wer = entry.weights, entry.dev_wer
        if self.options.retune:
            weights, dev_wer = self._retune(recogniser, beam)
        decoder = SearchDecoder(recogniser, test, options=BATCHES, progress=self.progress)
        decoder.reuse(decoders.setdefault(entry.model, decoder))
        details = 0 if entry.method == "BS" else self.options.details
        plan = Plan(entry.model, entry.method, weights, beam, dev_wer=dev_wer, details=details)
        return evaluate_decoder(plan, recogniser, decoder, test)

    def _retune(self, recogniser: Recogniser, beam: int) -> tuple[FusionWeights, float]:
        dev = in_memory(self.unpacked.utterances("dev"), RATE)
        length = (0.0, 1.5) if recogniser.frame_synchronous else (0.0, 0.0)
        options = TuningOptions(
            method=cast(Method, self.entry.method),
            space=WeightSpace(length=length),
            beam=beam,
            replicates=0,
        )
        decoder = SearchDecoder(recogniser, dev, options=BATCHES, progress=self.progress)
        found = tune_decoder(decoder, recogniser, dev, options)
        return found.weights, round(found.dev.rate, 4)


def _recogniser(unpacked: Unpacked, entry: BundledSystem) -> Recogniser:
    return load_recogniser(unpacked.parts(entry.model, entry.method), unpacked.search(entry.model))


def use_threads(threads: int) -> None:
    torch.set_num_threads(threads or os.cpu_count() or 1)


def write_demo_report(file: Path, sets: Sequence[Results]) -> None:
    """One page of every act that was run, recordings inside."""
    from ilme.report.build import ReportOptions, build_report

    title = "Internal language model estimation: a demonstration"
    write_text(file, build_report(sets, (), ReportOptions(title=title)))
