"""Word errors against the beam, for every fusion method: a wider search must not find worse sentences.

    python -m benchmarks.beams --bigram source-bigram.safetensors --json docs/results/data/beams.json
    python -m benchmarks.beams --study out/study/paper-right --plan configs/study/paper-right.yaml --device cuda \\
        --batch 250 --processes 6 --json beams-paper.json

Each method is tuned on dev alone, at one beam (`--tuning-beam`), the share of the background with it; then test is
decoded at each of `--beams` with those weights. Beside the word errors stands which transcripts have five or more words
too many, and how many of these do where the same model without LM, at the same beam, does not. A run that was stopped
goes on with the methods that its results file lacks. Without `--study` it runs on the bundled
AED, whose dev and test sets are 200 and 300 utterances; the bigram that LODR subtracts is not bundled (`ilme ngram
train` on the source text). `--weights as-bundled` takes the bundle's weights and search, which were tuned at beam 8.
A study has found its weights, those of `--setting`: they are taken as they are, with the search of its plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from benchmarks.timing import publish
from ilme.data.utterances import Utterance, in_memory, read_utterances
from ilme.evaluation.metrics import ErrorCounts, measure
from ilme.evaluation.tuning_result import Method, TuningResult
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import Parts, load_recogniser, parts_for
from ilme.recogniser.options import Options, SearchSettings
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.processes import ordered_map
from ilme.study.config import read_config
from ilme.study.decoding import search_options, setting_domain, system_parts
from ilme.study.stages import build_study
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.bundle import LEARNED, read_bundle
from ilme.workflows.tune import tune_decoder

METHODS = ("BS", "SF", "DR", "LODR", "ILME", "ILME-learned")
FAR = 5  # words too many
RATE = 16000


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    work = Work.of_study(options) if options.study else Work.of_bundle(options)
    found: dict[str, Any] = {"tuning beam": options.tuning_beam, "methods": begun(options.json)}
    left = [Sweep(work, method, options) for method in options.methods if method not in found["methods"]]
    for sweep, row in zip(left, ordered_map(Sweep.run, left, options.processes), strict=True):
        found["methods"][sweep.method] = row
        print(sweep.method, json.dumps(row), file=sys.stderr, flush=True)
        publish(found, options.json)
    publish(found | {"run on, not without LM": not_without_lm(found["methods"])}, options.json)


def begun(file: Path | None) -> dict[str, Any]:
    """The methods that an earlier run with this results file has done."""
    return dict(json.loads(file.read_text())["methods"]) if file is not None and file.is_file() else {}


def not_without_lm(methods: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """By method and beam: transcripts with five or more words too many, of which BS at that beam has fewer."""
    plain = methods.get("BS", {"test": {}})["test"]
    return {
        name: {beam: len({*row["run on"]} - {*plain[beam]["run on"]}) for beam, row in found["test"].items()}
        for name, found in methods.items()
        if set(found["test"]) <= set(plain)
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, help="a study's folder; without it the bundle")
    parser.add_argument("--plan", type=Path, help="the study's plan: how it searches")
    parser.add_argument("--setting", default="cross", choices=("cross", "intra", "cross-ce", "intra-ce"))
    parser.add_argument("--model", default="aed", choices=("aed", "rnnt"))
    parser.add_argument("--bigram", default="", help="what LODR subtracts, where there is no study")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="BS comes first")
    parser.add_argument("--beams", nargs="+", type=int, default=[4, 8, 16, 25, 50])
    parser.add_argument("--tuning-beam", type=int, default=25)
    parser.add_argument("--decodes", type=int, default=6)
    parser.add_argument("--background", nargs="+", type=float, default=[0.0, 0.02, 0.1, 0.3])
    parser.add_argument("--search", nargs="*", default=[], metavar="NAME:VALUE", help="search options that differ")
    parser.add_argument(
        "--reward", nargs=2, type=float, metavar=("LEAST", "MOST"), help="range of β; an RNN-T's is 0 3"
    )
    parser.add_argument("--weights", choices=("tuned", "as-bundled"), default="tuned")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", type=int, default=0, help="utterances of dev and of test; 0 takes all")
    parser.add_argument("--processes", type=int, default=1, help="methods at a time, where one search leaves room")
    parser.add_argument("--lists", type=Path, help="folder for the n-best lists of test, with every score")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.study and not options.plan:
        parser.error("--study needs its --plan")
    return options


@dataclass
class Work:
    """A model with its LMs by name, and its sets.

    Attributes:
        model: `aed` or `rnnt`.
        files: What `parts_for` takes.
        dev, test: With the audio in memory.
        search: How to search; None as the model's family is searched.
        known: Weights that were found before, by method.
        parts: The files of each method, where `files` does not say them.
        heard: The first decoder of each set, whose encoder outputs the others take over.
    """

    model: str
    files: dict[str, str]
    dev: list[Utterance]
    test: list[Utterance]
    search: Options | SearchSettings | None = None
    known: Mapping[str, FusionWeights] = field(default_factory=dict)
    parts: Mapping[str, Parts] = field(default_factory=dict)
    heard: dict[str, SearchDecoder] = field(default_factory=dict)

    @classmethod
    def of_bundle(cls, options: argparse.Namespace) -> Work:
        bundle = read_bundle()
        unpacked = bundle.unpack(Path("out/beams"))
        networks = {k: str(bundle.folder / f"{k}.safetensors") for k in (options.model, "lm", "source_lm")}
        files = {
            "model": networks[options.model],
            "lm": networks["lm"],
            "source_lm": networks["source_lm"],
            "bigram": options.bigram,
            "learned": str(bundle.folder / LEARNED[options.model]),
        }
        sets = [in_memory(unpacked.utterances(s)[: options.limit or None], RATE) for s in ("dev", "test")]
        if options.weights == "tuned":
            return cls(options.model, files, *sets, searched(options.search))
        known = {s.method: s.weights for s in bundle.systems if s.model == options.model}
        return cls(options.model, files, *sets, unpacked.search(options.model), known)

    @classmethod
    def of_study(cls, options: argparse.Namespace) -> Work:
        config, setting, model = read_config(options.plan), options.setting, options.model
        study = build_study(config, options.study, options.device)
        parts = {m: system_parts(study, model, setting, m) for m in options.methods}
        sets = [
            in_memory(
                read_utterances(study.folder("sets") / f"{setting_domain(setting)}-{s}")[: options.limit or None], RATE
            )
            for s in ("dev", "test")
        ]
        tuned = {m: TuningResult.load(study.folder(f"tune-{model}-{setting}") / f"{m}.json") for m in options.methods}
        known = {m: result.weights for m, result in tuned.items()}
        return cls(model, {}, *sets, search_options(config.decoding, model), known, parts)

    def recogniser(self, method: str, device: str) -> Recogniser:
        parts = self.parts.get(method) or parts_for(method, **self.files, device=device)
        return load_recogniser(parts, self.search or SearchSettings())

    def decoder(self, part: str, recogniser: Recogniser, batch: int, folder: Path | None = None) -> SearchDecoder:
        batches = DecodingOptions(batch_seconds=1e9, batch_size=batch, cache="device")
        decoder = SearchDecoder(recogniser, getattr(self, part), folder=folder, options=batches)
        return decoder.reuse(self.heard.setdefault(part, decoder))


@dataclass
class Sweep:
    """One method: weights from dev, then test at every beam."""

    work: Work
    method: str
    options: argparse.Namespace

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        recogniser = self.work.recogniser(self.method, self.options.device)
        began = time.process_time()
        weights, tuned = self.weights(recogniser)
        row: dict[str, Any] = {"weights": asdict(weights), **tuned, "test": {}}
        lists = self.options.lists and self.options.lists / self.method
        decoder = self.work.decoder("test", recogniser, self.options.batch, lists)
        for beam in self.options.beams:
            texts = {i: nbest[0].text for i, nbest in decoder.decode(weights, beam).items()}
            extra = {u.id: len(texts[u.id].split()) - len(u.text.split()) for u in self.work.test}
            row["test"][str(beam)] = {
                **counted(measured(self.work.test, texts)),
                "run on": [i for i, words in extra.items() if words >= FAR],
            }
        rates = [found["WER"] for found in row["test"].values()]
        return row | {"spread": round(max(rates) - min(rates), 2), "CPU seconds": round(time.process_time() - began)}

    def weights(self, recogniser: Recogniser) -> tuple[FusionWeights, dict[str, Any]]:
        if self.work.known:
            return self.work.known[self.method], {}
        reward = self.options.reward or ((0.0, 3.0) if recogniser.is_transducer else (0.0, 0.0))
        options = TuningOptions(
            method=cast(Method, self.method),
            space=WeightSpace(length=tuple(reward)),
            background=tuple(self.options.background),
            beam=self.options.tuning_beam,
            max_decodes=self.options.decodes,
            replicates=0,
        )
        decoder = self.work.decoder("dev", recogniser, self.options.batch)
        result = tune_decoder(decoder, recogniser, self.work.dev, options)
        steps = [{**asdict(s.weights), "WER": round(s.counts.rate, 3)} for s in result.steps]
        return result.weights, {"dev": counted(result.dev), "decodes of dev": steps}


def searched(given: Sequence[str]) -> SearchSettings:
    """NAME:VALUE of each option that differs from the model's own."""
    return SearchSettings(**{name: yaml.safe_load(value) for name, value in (one.split(":", 1) for one in given)})


def measured(utterances: Sequence[Utterance], texts: Mapping[str, str]) -> ErrorCounts:
    return measure({u.id: u.text for u in utterances}, texts).total


def counted(counts: ErrorCounts) -> dict[str, Any]:
    kinds = {k: v for k, v in asdict(counts).items() if k != "hits"}
    return {"WER": round(counts.rate, 2), **kinds, "words": counts.words}


if __name__ == "__main__":
    main()
