"""A TDT and a CTC layer trained on the bundled RNN-T's encoder: is a trained TDT what the toy of `tdt_deletions` is?

    ilme data domains speeches out/domains
    python -m experiments.tdt_trained text out/domains/speeches/train.txt out/tdt
    ilme data synth out/tdt/train.txt out/tdt/train --options.seed 1
    ilme data synth out/tdt/held.txt out/tdt/held --options.seed 9
    ilme data import out/tdt/train out/tdt/train-cuts
    ilme data import out/tdt/held out/tdt/held-cuts
    ilme train rnnt --config configs/train/rnnt-small-bundled.yaml …          # as that file says, for both
    python -m experiments.tdt_trained measure out/tdt --json docs/results/data/tdt-trained.json

`text` draws sentences of the domain that the bundled models learnt, and writes their tokenizer. `measure` tunes every
method of each model on bundled dev recordings, with as many decodes, and decodes the bundled test set once with each;
beside them Shallow Fusion with fixed λ and no length reward. What is finished stands in FOLDER/systems and is not made
again.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish

from ilme.data.utterances import in_memory
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.evaluation.tuning_result import Method
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import SearchDecoder
from ilme.recogniser.loading import Parts, load_model, load_recogniser, parts_for
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_atomically
from ilme.search.ctc import CTCOptions
from ilme.search.hypothesis import NBest
from ilme.search.transducer import TransducerOptions
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.bundle import Unpacked, read_bundle
from ilme.workflows.demo import BATCHES, RATE
from ilme.workflows.tune import tune_decoder

SHORTEST, LONGEST = 4, 20  # words of a sentence
REWARD = (0.0, 3.0)  # of β, where it is tuned
FIXED = (0.2, 0.4)  # λ without a length reward
NONE = (0.0, 0.0)
METHODS: dict[str, tuple[Method, tuple[float, float]]] = {
    "BS": ("BS", REWARD),
    "SF, β 0": ("SF", NONE),
    "SF blank-aware, β 0": ("SF", NONE),
    "ILME, β 0": ("ILME", NONE),
    "SF": ("SF", REWARD),
    "DR": ("DR", REWARD),
    "ILME": ("ILME", REWARD),
}
NAMES = (*METHODS, *(f"SF, λ {weight}" for weight in FIXED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_subparsers(dest="what", required=True)
    text = todo.add_parser("text")
    text.add_argument("source", type=Path)
    text.add_argument("out", type=Path)
    text.add_argument("--sentences", type=int, default=3000)
    text.add_argument("--held-out", type=int, default=60)
    text.add_argument("--seed", type=int, default=1)
    found = todo.add_parser("measure")
    found.add_argument("folder", type=Path, help="with the trained models tdt and ctc")
    found.add_argument("--models", nargs="+", default=["rnnt", "tdt", "ctc"], choices=["rnnt", "tdt", "ctc"])
    found.add_argument("--dev", type=int, default=120, help="bundled dev recordings")
    found.add_argument("--beam", type=int, default=4)
    found.add_argument("--decodes", type=int, default=4, help="of dev, for each method")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "text":
        write_text(args)
        return
    torch.set_num_threads(1)
    bench = Bench(args)
    for model in args.models:
        for name in NAMES:
            if model != "ctc" or "blank-aware" not in name:  # a CTC model has no labels against blank
                bench.system(model, name)
    publish(bench.report(), args.json, seed=args.seed)


def write_text(args: argparse.Namespace) -> None:
    """train.txt and held.txt, sentences of the source domain, and bpe.model, the bundled models' tokenizer."""
    lines = [s for s in args.source.read_text(encoding="utf-8").splitlines() if SHORTEST <= len(s.split()) <= LONGEST]
    random.Random(args.seed).shuffle(lines)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = args.sentences + args.held_out
    for name, part in {"train": lines[: args.sentences], "held": lines[args.sentences : whole]}.items():
        (args.out / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    load_model("bundled/rnnt").tokenizer.save(args.out / "bpe.model")


class Bench:
    """Both sets, and what was made of them.

    Args:
        args: The program's options.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.bundle: Unpacked = read_bundle().unpack(args.folder / "bundle")
        listed = random.Random(args.seed).sample(self.bundle.utterances("dev"), args.dev)
        self.dev, self.test = in_memory(listed, RATE), in_memory(self.bundle.utterances("test"), RATE)
        self._heard: dict[tuple[str, str], SearchDecoder] = {}

    def system(self, model: str, name: str) -> None:
        """Tunes a system unless its weights are fixed, and decodes test once."""
        file = self.args.folder / "systems" / f"{model} {name}.json"
        if file.exists():
            return
        weights, dev = FusionWeights(lm=float(name.split("λ ")[-1])) if "λ" in name else None, None
        method, length = METHODS.get(name, ("SF", NONE))
        recogniser = self.recogniser(model, method, "blank-aware" in name)
        if weights is None:
            options = TuningOptions(
                method=method,
                space=WeightSpace(length=length),
                beam=self.args.beam,
                max_decodes=self.args.decodes,
                replicates=0,
                seed=self.args.seed,
            )
            tuned = tune_decoder(self.decoder(model, "dev", recogniser), recogniser, self.dev, options)
            weights, dev = tuned.weights, round(tuned.dev.rate, 2)
        lists = self.decoder(model, "test", recogniser).decode(weights, self.args.beam)
        row = {"weights": asdict(weights), "dev": dev, "texts": {i: best(nbest) for i, nbest in lists.items()}}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(row, ensure_ascii=False).encode())
        print(model, name, row["weights"], dev, measured(self.test, row["texts"]).total, flush=True)

    def recogniser(self, model: str, method: Method, aware: bool) -> Recogniser:
        parts: Parts = self.bundle.parts("rnnt", method)
        if model != "rnnt":
            trained = str(self.args.folder / model / "model.safetensors")
            parts = parts_for(
                method, trained, parts.lm, source_lm=str(self.bundle.bundle.folder / "source_lm.safetensors")
            )
        beams = {"beam": self.args.beam, "nbest": self.args.beam}
        if model == "ctc":
            return load_recogniser(parts, CTCOptions(**beams), {"head": "ctc"})
        return load_recogniser(parts, TransducerOptions(**beams, blank_aware=aware))

    def decoder(self, model: str, part: str, recogniser: Recogniser) -> SearchDecoder:
        """Of a set, with the encoder outputs that were made for the first method."""
        decoder = SearchDecoder(recogniser, self.dev if part == "dev" else self.test, options=BATCHES)
        return decoder.reuse(self._heard.setdefault((model, part), decoder))

    def report(self) -> dict[str, Any]:
        """Errors by kind on test, the paired comparisons with BS and SF, and the weights."""
        systems: dict[str, Any] = {}
        for model in self.args.models:
            rows = {
                file.stem.removeprefix(f"{model} "): json.loads(file.read_text(encoding="utf-8"))
                for file in sorted((self.args.folder / "systems").glob(f"{model} *.json"))
            }
            results = {name: measured(self.test, row["texts"]) for name, row in rows.items()}
            order = [name for name in NAMES if name in rows]
            systems[model] = {
                name: shown(results, name) | {k: rows[name][k] for k in ("weights", "dev")} for name in order
            }
        words = sum(len(u.text.split()) for u in self.test)
        return {
            "test": len(self.test),
            "words": words,
            "dev": len(self.dev),
            "beam": self.args.beam,
            "systems": systems,
        }


def best(nbest: NBest) -> str:
    return nbest[0].text if nbest else ""


def measured(test: list[Any], texts: dict[str, str]) -> Measurement:
    return measure({u.id: u.text for u in test}, texts, speakers={u.id: u.speaker for u in test})


def shown(results: dict[str, Measurement], name: str) -> dict[str, Any]:
    found, interval = results[name], bootstrap_interval(results[name])
    row = {
        "WER": round(found.rate, 2),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        **asdict(found.total),
    }
    for other in ("BS", "SF"):
        if name != other and other in results:
            pair = compare(name, found, other, results[other])
            row[f"against {other}"] = {"relative %": round(-pair.relative, 2), "p": round(pair.p_bootstrap, 4)}
    return row


if __name__ == "__main__":
    main()
