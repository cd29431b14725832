"""The demonstration's first act: Whisper tiny.en on real recordings of two domains, adapted to each from text alone.

Without an LM, with Shallow Fusion, with ILME, with ILME and a list of names: the weights were found on other recordings
(`ilme.workflows.speech_bundle`), everything else is measured here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ilme.data.utterances import Utterance, in_memory, references_of
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.domain import load_domain
from ilme.recogniser.options import with_beam
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.shared_models import SharedModels
from ilme.report.opening import CHOSEN
from ilme.runtime.processes import in_processes
from ilme.workflows.demo import DemoOptions, use_threads
from ilme.workflows.evaluate import Plan, evaluate_decoder
from ilme.workflows.speech_bundle import METHODS, SpeechBundle, SpokenDomain, read_speech_bundle, utterances_of
from ilme.workflows.with_dev import choose_normaliser

__all__ = ["LABEL", "SpeechSystem", "run_speech"]

LABEL = "Whisper tiny.en"
BATCHES = DecodingOptions(batch_seconds=120.0, batch_size=16, cache="cpu")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SpeechSystem:
    """One method on one domain."""

    domain: str
    method: str


def run_speech(
    whisper: str,
    out: Path,
    options: DemoOptions | None = None,
    bundle: SpeechBundle | None = None,
    progress: Callable[[str], Progress | None] = lambda name: None,
) -> list[Results]:
    """Decodes the recordings of each domain with every method wanted; writes OUT/DOMAIN.json.

    Args:
        whisper: The model, as `ilme.load_model` takes it.
        out: Folder for results, and for the recordings unpacked.
        options: What to decode.
        bundle: The one that ships with the package by default.
        progress: Called with a system's name; what it returns is called with (utterances done, of how many).
    """
    options, bundle = options or DemoOptions(), bundle or read_speech_bundle()
    folders = bundle.unpack(out / "speech")
    titles = {d.name: d.title for d in bundle.domains}
    methods = [m for m in METHODS if options.method in ("all", m.partition(" ")[0])]
    wanted = [SpeechSystem(d.name, m) for d in bundle.domains[::-1] for m in methods[::-1]]  # slowest first
    decoded = in_processes(
        SpeechRuns(whisper, bundle, folders, options),
        wanted,
        options.at_a_time(),
        lambda entry: progress(f"{LABEL} {entry.method}, {titles[entry.domain]}"),
    )
    found = dict(zip(wanted, decoded, strict=True))
    parts = []
    for domain in bundle.domains:
        listed = utterances_of(folders[domain.name])[: options.utterances or None]
        systems = tuple(found[SpeechSystem(domain.name, m)] for m in methods)
        about = {"beam": options.beam or bundle.beam, domain.title: domain.credit, CHOSEN: bundle.rule}
        part = Results(domain.title, choose_normaliser("auto"), references_of(listed), systems, about)
        part.save(out / f"{domain.name}.json")
        parts.append(part)
    return parts


@dataclass
class SpeechRuns:
    """Decodes with one system after another; the model is loaded once, a domain's LM and encoder outputs are kept.

    Attributes:
        whisper: The model.
        bundle: Weights and beam.
        folders: Unpacked domains, by name.
        options: Beam, utterances, threads, details.
    """

    whisper: str
    bundle: SpeechBundle
    folders: dict[str, Path]
    options: DemoOptions
    _models: SharedModels = field(default_factory=SharedModels)
    _known: dict[str, tuple[Recogniser, list[Utterance]]] = field(default_factory=dict)
    _decoders: dict[str, SearchDecoder] = field(default_factory=dict)

    def __call__(self, entry: SpeechSystem, progress: Progress | None) -> System:
        use_threads(self.options.threads)
        whole, test = self._domain(entry.domain)
        domain = next(d for d in self.bundle.domains if d.name == entry.domain)
        recogniser, weights = of_method(whole, entry.method, domain)
        decoder = SearchDecoder(recogniser, test, options=BATCHES, progress=progress)
        decoder.reuse(self._decoders.setdefault(entry.domain, decoder))
        plan = Plan(
            LABEL,
            entry.method,
            weights,
            recogniser.options.beam,
            choose_normaliser("auto"),
            dev_wer=domain.dev_wer[entry.method],
            details=self.options.details if entry.method.startswith("ILME") else 0,
        )
        return evaluate_decoder(plan, recogniser, decoder, test)

    def _domain(self, name: str) -> tuple[Recogniser, list[Utterance]]:
        """The recogniser of a domain, with all that its folder has, and its recordings."""
        if name not in self._known:
            folder = self.folders[name]
            recogniser = load_domain(folder / "domain", model=self.whisper, load=self._models)
            recogniser.options = with_beam(recogniser.options, self.options.beam or self.bundle.beam)
            listed = utterances_of(folder)[: self.options.utterances or None]
            self._known[name] = recogniser, in_memory(listed, recogniser.rate)
        return self._known[name]


def of_method(whole: Recogniser, method: str, domain: SpokenDomain) -> tuple[Recogniser, FusionWeights]:
    """The recogniser with no more than the method uses, and its weights."""
    if method == "BS":
        return Recogniser(whole.model, options=whole.options), FusionWeights()
    if method == "SF":
        return Recogniser(whole.model, lm=whole.lm, options=whole.options), domain.sf
    if method == "ILME":
        weights = replace(whole.weights, phrases=0.0)
        return Recogniser(whole.model, lm=whole.lm, subtracted=whole.subtracted, options=whole.options), weights
    return whole, whole.weights
