"""A domain with a few hundred sentences of text: voice commands, from nothing but package registries and a model.

    python -m experiments.commands_domain --model tiny.en.pt --work out/commands --json results.json

    ilme data domains commands → 500 sentences of its train part are the text, 100 of dev and 80 of test are spoken
      (ilme data synth) → ilme adapt, timed → Shallow Fusion tuned on the same dev in as many decodes → test, once each

Templates are held out whole, and no sentence of one part is in another. Every system has the search options of the
domain folder, so the same guards; errors are counted after Whisper's own normaliser. The row of ILME is the folder that
`ilme adapt` wrote, as it is. Steps whose result is in the work folder are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish
from benchmarks.whisper import changed, measured_row

from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.domain import load_domain
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.recogniser import Recogniser
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.tune import tune_decoder

SPEECH_SEEDS = {"dev": 1, "test": 2}  # other voices for other parts
BATCHES = DecodingOptions(batch_seconds=240.0, batch_size=8, cache="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for text, speech and the domain")
    parser.add_argument("--sentences", nargs=3, type=int, default=[500, 100, 80], help="of train, dev and test")
    parser.add_argument("--name", default="domain", help="of the domain folder inside the work folder")
    parser.add_argument("--adapt", nargs="*", default=[], metavar="OPTION=VALUE", help="more options of ilme adapt")
    parser.add_argument("--decodes", type=int, default=4, help="of dev for Shallow Fusion; as many as ilme adapt has")
    parser.add_argument("--adapt-only", action="store_true", help="time the adaptation, and measure nothing else")
    parser.add_argument("--normaliser", default="whisper", help="of both sides before errors are counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    args.work.mkdir(parents=True, exist_ok=True)
    text = draw_text(args.work, args.sentences, args.seed)
    speak(args.work)
    report = {"text": text, "adaptation": adapt(args)} | ({} if args.adapt_only else accuracy(args))
    publish(report, args.json, seed=args.seed)


def ilme(*arguments: str) -> dict[str, float]:
    """Runs one `ilme` command; the wall and CPU seconds it took, start of Python included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "ilme.cli", *arguments], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall s": round(time.perf_counter() - began, 1), "CPU s": round(cpu, 1)}


def draw_text(work: Path, sentences: Sequence[int], seed: int) -> dict[str, Any]:
    """Writes train.txt, dev.txt and test.txt: sentences drawn from the domain's parts, none of them in two parts."""
    if not (work / "domains" / "commands" / "train.txt").exists():
        ilme("data", "domains", "commands", str(work / "domains"))
    taken: set[str] = set()
    drawn: dict[str, list[str]] = {}
    for part, count in reversed(list(zip(("train", "dev", "test"), sentences, strict=True))):
        lines = (work / "domains" / "commands" / f"{part}.txt").read_text(encoding="utf-8").splitlines()
        fresh = sorted({line.strip() for line in lines if line.strip()} - taken)
        random.Random(seed).shuffle(fresh)
        drawn[part] = fresh[:count]
        taken.update(drawn[part])
        (work / f"{part}.txt").write_text("\n".join(drawn[part]) + "\n", encoding="utf-8")
    words = {word for line in drawn["train"] for word in line.split()}
    tested = [word for line in drawn["test"] for word in line.split()]
    return {
        "sentences": {part: len(lines) for part, lines in drawn.items()},
        "words": {part: sum(len(line.split()) for line in lines) for part, lines in drawn.items()},
        "test sentences in the text": len(set(drawn["test"]) & set(drawn["train"])),
        "test words that the text lacks, %": round(100 * sum(w not in words for w in tested) / len(tested), 2),
    }


def speak(work: Path) -> None:
    for part, seed in SPEECH_SEEDS.items():
        if not (work / part / "manifest.jsonl").exists():
            ilme("data", "synth", str(work / f"{part}.txt"), str(work / part), f"--options.seed={seed}")


def adapt(args: argparse.Namespace) -> dict[str, Any]:
    """`ilme adapt` as a user runs it; its seconds are kept beside the folder."""
    folder, kept = args.work / args.name, args.work / f"{args.name}.seconds.json"
    options = [f"--{option}" for option in args.adapt]
    if not kept.exists():
        took = ilme(
            "adapt",
            f"--model={args.model}",
            f"--text={args.work / 'train.txt'}",
            f"--dev={args.work / 'dev' / 'manifest.jsonl'}",
            f"--out={folder}",
            *options,
        )
        kept.write_text(json.dumps(took) + "\n", encoding="utf-8")
    card = json.loads((folder / "domain.json").read_text(encoding="utf-8"))
    return {"options": options, **json.loads(kept.read_text(encoding="utf-8")), "domain": card}


def decoder(
    args: argparse.Namespace,
    adapted: Recogniser,
    part: str,
    name: str,
    cache: EncoderCache,
    processes: Processes | None = None,
) -> SearchDecoder:
    """Dev or test with the scorers of BS and SF or of ILME; lists are kept in the work folder as they finish."""
    recogniser = Recogniser(
        adapted.model,
        lm=adapted.lm,
        subtracted=adapted.subtracted if name == "ILME" else None,
        options=adapted.options,
        cache=cache,
    )
    utterances = read_utterances(args.work / part / "manifest.jsonl")
    folder = args.work / f"{args.name}.lists" / part / name
    return SearchDecoder(recogniser, utterances, folder=folder, options=BATCHES, processes=processes)


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    """BS, SF and ILME on test, once each."""
    adapted = load_domain(args.work / args.name, model=args.model)
    references = {u.id: u.text for u in read_utterances(args.work / "test" / "manifest.jsonl")}
    search, cache = adapted.options, EncoderCache()

    def decoded(name: str) -> Measurement:
        lists = decoder(args, adapted, "test", name, cache).decode(weights[name], search.beam)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        return measure(references, texts, normaliser_name=args.normaliser)

    tuned = tuned_sf(args, adapted)
    weights = {"BS": FusionWeights(), "SF": FusionWeights(lm=tuned["lm"]), "ILME": adapted.weights}
    results = {name: decoded(name) for name in weights}
    rows = {name: measured_row(results, name) | {"weights": asdict(weights[name])} for name in results}
    rows["SF"] |= tuned
    for name, measured in results.items():
        errors = [u.counts.errors for u in measured.utterances]
        rows[name] |= {"most errors in one utterance": max(errors), "utterances without error": errors.count(0)}
    return {
        "search": {k: str(v) for k, v in asdict(search).items()},
        "systems": rows,
        "examples": changed(results),
    }


def tuned_sf(args: argparse.Namespace, adapted: Recogniser) -> dict[str, Any]:
    """Shallow Fusion's weight from the dev speech, in as many decodes as `ilme adapt` has, its tuner and objective."""
    kept = args.work / f"{args.name}.sf.json"
    if not kept.exists():
        dev = decoder(args, adapted, "dev", "SF", EncoderCache())
        options = TuningOptions(
            method="SF",
            beam=adapted.options.beam,
            max_decodes=args.decodes,
            normaliser="whisper",
            replicates=0,
            seed=args.seed,
        )
        found = tune_decoder(dev, adapted, dev.utterances, options)
        steps = [{"lm": step.weights.lm, "WER": step.counts.rate} for step in found.steps]
        kept.write_text(json.dumps({"lm": found.weights.lm, "dev decodes": steps}) + "\n", encoding="utf-8")
    return dict(json.loads(kept.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
