"""What one `ilme adapt --lm auto --minutes M` gives on a corpus: no LM, Shallow Fusion and ILME with the LM it makes.

python -m benchmarks.one_command --model tiny.en.pt --speech librispeech-dev-clean --text novels.tar.xz --minutes 5 \
    --device cuda --work out/one-command --json docs/results/data/one-command.json

Everything is done by the commands that a user has. `ilme adapt` reads the text without what the corpus says, trains the
LM and tunes on the split `tune`; `ilme tune` finds Shallow Fusion's weight with the same LM in as many decodes; and
`ilme evaluate` decodes the split `test` once for each. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.timing import publish
from ilme.evaluation.results import Results, System, merge_results
from ilme.evaluation.significance import compare
from ilme.runtime.files import write_json

PAIRS = (("SF", "BS"), ("ILME", "BS"), ("ILME", "SF"))


class Commands:
    """Runs commands of `ilme`, each once, and keeps how long each took and what it printed."""

    def __init__(self, work: Path) -> None:
        self.work, self.seconds = work, dict[str, float]()
        work.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, *words: str | int | float | Path) -> None:
        done = self.work / f"{name}.done.json"
        if not done.is_file():
            began = time.monotonic()
            with (self.work / f"{name}.log").open("w", encoding="utf-8") as log:
                told = [sys.executable, "-m", "ilme.cli", *map(str, words)]
                subprocess.run(told, stdout=log, stderr=subprocess.STDOUT, check=True)
            write_json(done, round(time.monotonic() - began, 1))
        self.seconds[name] = json.loads(done.read_text(encoding="utf-8"))


def run(args: argparse.Namespace) -> None:
    work, model, device = args.work, args.model, ("--device", args.device)
    command, domain = Commands(work), args.work / "domain"
    batches = ("--decoding.batch_size", args.batch, "--decoding.batch_seconds", 15 * args.batch)
    limit, manifest = ("--limit", args.limit), args.speech / "manifest.jsonl"
    command(
        "adapt", "adapt", "--model", model, "--text", args.text, "--out", domain, "--dev", args.speech,
        "--split", "tune", *limit, "--lm", args.lm, "--minutes", args.minutes, *device,
        "--options.normaliser", "whisper", "--options.max_decodes", args.decodes, "--options.exclude", manifest,
    )  # fmt: skip
    if args.skip_test:
        publish(made(domain, command.seconds), args.json, seed=0)
        return
    lm = ("--lm", domain / json.loads((domain / "domain.json").read_text(encoding="utf-8"))["lm"])

    def shallow_fusion() -> None:
        command(
            "tune-SF", "tune", model, args.speech, work / "tune-SF", *lm, "--split", "tune", *limit, *device, *batches,
            "--beam", 8, "--tuning.method", "SF", "--tuning.normaliser", "whisper",
            "--tuning.max_decodes", args.decodes,
        )  # fmt: skip
        tested("SF", model, *lm, "--weights", work / "tune-SF" / "tuning.json")

    def tested(method: str, name: Path, *more: str | Path) -> None:
        command(
            f"test-{method}", "evaluate", name, args.speech, work / method, "--split", "test", "--label", args.label,
            "--normaliser", "whisper", *device, *batches, "--limit", args.test_limit, *more,
        )  # fmt: skip

    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(tested, "BS", model, "--beam", "8"),
            pool.submit(shallow_fusion),
            pool.submit(tested, "ILME", domain, "--domain", "--method", "ILME"),
        ]
    for job in jobs:
        job.result()
    results = merge_results([Results.load(work / method / "results.json") for method in ("BS", "SF", "ILME")], "test")
    publish(made(domain, command.seconds) | measured(results), args.json, seed=0)


def made(domain: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """What the card of the domain folder says."""
    card = json.loads((domain / "domain.json").read_text(encoding="utf-8"))
    report = card["report"]
    return {
        "seconds": seconds,
        "text": report["text"],
        "LM": report["lm"],
        "internal LM": card["internal"],
        "internal LMs, errors on the lists": report["internal LMs, errors on the lists"],
        "dev": {"before": report["before"], "after": report["after"], "utterances": report["dev utterances"]},
    }


def measured(results: Results) -> dict[str, Any]:
    by_method = {s.method: results.measurements[s.name] for s in results.systems}
    pairs = []
    for a, b in PAIRS:
        pair = compare(a, by_method[a], b, by_method[b])
        relative, p = round(-pair.relative, 1), round(pair.p_bootstrap, 4)
        pairs.append({"pair": f"{a} against {b}", "relative, %": relative, "p": p})
    return {
        "utterances": len(results.references),
        "words": next(iter(by_method.values())).total.words,
        "systems": [row(s, results) for s in results.systems],
        "pairs": pairs,
    }


def row(system: System, results: Results) -> dict[str, Any]:
    measured, interval = results.measurements[system.name].total, results.intervals[system.name]
    return {
        "system": system.method,
        "λ_T": round(system.weights.lm, 4),
        "μ": round(system.weights.subtracted, 4),
        "dev WER": None if system.dev_wer is None else round(system.dev_wer, 3),
        "test WER": round(measured.rate, 3),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        "substitutions": measured.substitutions,
        "deletions": measured.deletions,
        "insertions": measured.insertions,
        "decode, s": round(system.seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--label", default="whisper-tiny.en", help="name of the model in tables")
    parser.add_argument("--speech", type=Path, required=True, help="folder with the splits tune and test")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lm", default="auto", choices=("auto", "ngram", "lstm", "decoder"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--decodes", type=int, default=6, help="of dev, for each method that is tuned")
    parser.add_argument("--limit", type=int, default=0, help="utterances of dev; 0 takes all")
    parser.add_argument("--test-limit", type=int, default=0, help="utterances of test; 0 takes all")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--skip-test", action="store_true", help="adapt only: what dev says")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
