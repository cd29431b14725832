"""Which LM for how much text: voice commands, 100 to 5,000 lines; an n-gram, an LSTM, or the model's own decoder.

    python -m experiments.commands_lm --model tiny.en.pt --work out/commands --json results.json

Sentences and speech are those of `experiments.commands_domain` (drawn here if the work folder has none). For each
amount of text and each LM: `choose_lm` as `ilme adapt` calls it, timed → ILME's weights, and Shallow Fusion's, on the
same dev speech in as many decodes, the internal LM the same for all (encoder output zeroed) → test, once each. The
encoder runs once for all of them. Each cell is kept in the work folder when it is done, and not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish
from benchmarks.whisper import measured_row

from experiments.commands_domain import draw_text, speak
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import compare
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.protocols import TokenScorer
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.recogniser import Recogniser
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.domain_lm import LMOptions, read_domain_text
from ilme.workflows.lm_choice import choose_lm
from ilme.workflows.tune import tune_decoder

BATCHES = DecodingOptions(batch_seconds=240.0, batch_size=8, cache="none")
INTERNAL = "zeroed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for text, speech and what is done")
    parser.add_argument("--lines", nargs="*", type=int, default=[100, 500, 5000])
    parser.add_argument("--lms", nargs="*", default=["ngram", "decoder", "lstm", "auto"])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each neural LM")
    parser.add_argument("--dev", type=int, default=60, help="dev utterances")
    parser.add_argument(
        "--decodes", type=int, default=3, help="of dev, for each tuning; the first, without LM, is shared"
    )
    parser.add_argument("--methods", nargs="*", default=["SF", "ILME"])
    parser.add_argument("--beam", type=int, default=0)
    parser.add_argument("--finished", action="store_true", help="report what is done, and measure nothing more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    args.work.mkdir(parents=True, exist_ok=True)
    text = draw_text(args.work, [max(args.lines), 100, 80], args.seed)
    speak(args.work)
    bench = Bench(args)
    cells = {str(n): {lm: bench.cell(n, lm) for lm in args.lms if bench.wanted(n, lm)} for n in args.lines}
    options = {"internal LM": INTERNAL, "dev utterances": args.dev, "dev decodes": args.decodes}
    report = {"text": text, **options, "search": {k: str(v) for k, v in asdict(bench.search).items()}}
    publish(report | {"BS": bench.plain_row(), "lines": cells}, args.json, seed=args.seed)


class Bench:
    """The model, dev and test speech whose encoder outputs are kept, and what was measured so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.cache = args, EncoderCache()
        self.model = load_model(args.model)
        pack_networks(self.model, (), "float32")
        self.search = default_options(self.model, args.beam)
        self.sets = {p: read_utterances(args.work / p / "manifest.jsonl") for p in ("dev", "test")}
        self.sets["dev"] = self.sets["dev"][: args.dev]
        self.internal = internal_lm(self.model, INTERNAL)
        self.plain_dev: dict[str, NBest] = {}
        self.kept = f"beam{self.search.beam}-dev{args.dev}-decodes{args.decodes}.json"

    def decoder(self, part: str, lm: TokenScorer | None) -> SearchDecoder:
        recogniser = Recogniser(self.model, lm=lm, subtracted=self.internal, options=self.search, cache=self.cache)
        return SearchDecoder(recogniser, self.sets[part], options=BATCHES)

    def measured(self, part: str, lm: TokenScorer | None, weights: FusionWeights) -> Measurement:
        lists = self.decoder(part, lm).decode(weights, self.search.beam)
        return measured(self.sets[part], {i: nbest[0].text for i, nbest in lists.items()})

    def plain(self) -> Measurement:
        """Test without LM; its texts are kept."""
        kept = self.args.work / f"plain-beam{self.search.beam}.json"
        if not kept.exists():
            found = self.measured("test", None, FusionWeights())
            kept.write_text(json.dumps({u.id: u.hypothesis for u in found.utterances}), encoding="utf-8")
        return measured(self.sets["test"], json.loads(kept.read_text(encoding="utf-8")))

    def plain_row(self) -> dict[str, Any]:
        return measured_row({"BS": self.plain()}, "BS")

    def wanted(self, lines: int, lm: str) -> bool:
        return not self.args.finished or (self.folder(lines, lm) / self.kept).exists()

    def folder(self, lines: int, lm: str) -> Path:
        """Where a cell is kept; only the networks' differ with the minutes."""
        minutes = "" if lm == "ngram" else f"-{self.args.minutes:g}"
        return Path(self.args.work) / f"cell-{lines}-{lm}{minutes}"

    def cell(self, lines: int, lm: str) -> dict[str, Any]:
        """One LM on so many lines: its training, SF and ILME."""
        folder = self.folder(lines, lm)
        kept, trained = folder / self.kept, folder / "trained.json"
        if not kept.exists():
            folder.mkdir(exist_ok=True)
            if not trained.exists():
                trained.write_text(json.dumps(self.train(folder, lines, lm)) + "\n", encoding="utf-8")
            found = json.loads(trained.read_text(encoding="utf-8"))
            scorer = load_lm(folder / found.pop("name"), self.model)
            pack_networks(self.model, (scorer,), "float32")
            results = {"BS": self.plain()}
            for method in self.args.methods:
                tuned, results[method], seconds = self.tuned(method, scorer)
                found[method] = {"weights": tuned["weights"], "dev": tuned["steps"], "test decode CPU s": seconds}
            for method in self.args.methods:
                found[method] |= measured_row(results, method)
                found[method]["texts"] = {u.id: u.hypothesis for u in results[method].utterances}
            kept.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        found = json.loads(kept.read_text(encoding="utf-8"))
        self.against_ngram(found, lines, lm)
        for method in self.args.methods:
            found[method].pop("texts")
        print(lines, lm, found["about"].get("perplexity"), {m: found[m]["WER"] for m in self.args.methods}, flush=True)
        return dict(found)

    def against_ngram(self, found: dict[str, Any], lines: int, lm: str) -> None:
        base = self.folder(lines, "ngram") / self.kept
        if lm == "ngram" or not base.exists():
            return
        other = json.loads(base.read_text(encoding="utf-8"))
        for method in self.args.methods:
            ours, theirs = (measured(self.sets["test"], cell[method]["texts"]) for cell in (found, other))
            pair = compare(lm, ours, "ngram", theirs)
            against = {"relative %": round(-pair.relative, 2), "p bootstrap": round(pair.p_bootstrap, 5)}
            found[method]["against ngram"] = against

    def train(self, folder: Path, lines: int, lm: str) -> dict[str, Any]:
        """The LM as `ilme adapt` makes it."""
        text = folder / "text.txt"
        drawn = (self.args.work / "train.txt").read_text(encoding="utf-8").splitlines()[:lines]
        text.write_text("\n".join(drawn) + "\n", encoding="utf-8")
        options = LMOptions(seed=self.args.seed)
        wall, cpu = time.perf_counter(), cpu_seconds()
        read = read_domain_text(self.model, [str(text)], [], options, print)
        chosen = choose_lm(lm, self.model, read, folder, folder / "work", self.args.minutes, options, print)
        took = {"wall s": round(time.perf_counter() - wall, 1), "CPU s": round(cpu_seconds() - cpu, 1)}
        return {"name": chosen.name, "time": took, "text": read.about, "about": chosen.about}

    def tuned(self, method: str, lm: TokenScorer) -> tuple[dict[str, Any], Measurement, float]:
        """A method's weights on dev, its test, and the CPU seconds of the test decode."""
        decoder = self.decoder("dev", lm)
        dev = CachedDecoder(decoder)
        self.plain_dev = self.plain_dev or decoder.decode(FusionWeights(), self.search.beam)
        scored = complete(self.plain_dev, lm=SequenceScorer(lm, finish=decoder.recogniser.ends["lm"]))
        dev.know(FusionWeights(), self.search.beam, scored)
        options = TuningOptions(
            method=method,  # type: ignore[arg-type]
            beam=self.search.beam,
            max_decodes=self.args.decodes,
            normaliser="whisper",
            replicates=0,
            seed=self.args.seed,
        )
        found = tune_decoder(dev, decoder.recogniser, decoder.utterances, options)
        steps = [{**asdict(step.weights), "WER": round(step.counts.rate, 3)} for step in found.steps]
        began = cpu_seconds()
        test = self.measured("test", lm, found.weights)
        return {"weights": asdict(found.weights), "steps": steps}, test, round(cpu_seconds() - began, 1)


def measured(utterances: list[Utterance], texts: Mapping[str, str]) -> Measurement:
    return measure({u.id: u.text for u in utterances}, dict(texts), normaliser_name="whisper")


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
