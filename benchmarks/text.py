"""Speed and memory of the text tools: prepare, n-gram training, n-gram rows, synthetic speech.

    python -m benchmarks.text prepare --text 'corpus/*.txt' [--megabytes 1000]
    python -m benchmarks.text ngram --tokens 10000000
    python -m benchmarks.text rows
    python -m benchmarks.text synth --sentences 2000

Each prints one JSON object. Wall time is what a user waits; CPU time is what other load disturbs least. `speed_idle` is
what the CPU time would give on as many idle cores as there were processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def cores() -> int:
    return len(os.sched_getaffinity(0))


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of `work`, with wall and CPU seconds of all its processes and their largest memory in MB."""

    def cpu() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage)

    wall, before = time.perf_counter(), cpu()
    result = work()
    own, child = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return result, {
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(cpu() - before, 2),
        "memory_mb": round(own + cores() * child, 1),
    }


def novel_text(megabytes: float, path: Path) -> None:
    """Sentences of words drawn from a long-tailed vocabulary, with capitals, marks and numbers: the worst case for the
    deduplication, since hardly any two are equal.
    """
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    vocabulary = np.array(["".join(random.choice(letters, random.integers(1, 11))) for _ in range(50_000)])
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            ranks = np.minimum((50_000 * random.random(200_000) ** 4).astype(np.int64), 49_999)
            lengths = random.integers(4, 32, 11_000)
            at, lines = 0, []
            for length in lengths.tolist():
                words = vocabulary[ranks[at : at + length]].tolist()
                at += length
                if not words:
                    break
                number = f" {int(random.integers(1, 2000))}" if random.random() < 0.05 else ""
                lines.append(f"{words[0].capitalize()} {' '.join(words[1:])}{number}.\n")
            text = "".join(lines)
            file.write(text)
            written += len(text)


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    from ilme.data.text import PrepareOptions
    from ilme.data.text import prepare as run

    with tempfile.TemporaryDirectory() as folder:
        inputs = [args.text]
        if args.text is None:
            inputs = [str(Path(folder) / "made.txt")]
            novel_text(args.megabytes, Path(inputs[0]))
        exclude = [args.exclude] if args.exclude else []
        options = PrepareOptions(profile=args.profile, hold_out=0.01)
        report, cost = measured(lambda: run(inputs, Path(folder) / "out", exclude, options))
    words = report.train_words + report.heldout_words
    return {
        "words": words,
        "sentences": report.found,
        "dropped": dict(report.dropped),
        **cost,
        "words_per_minute": round(60 * words / cost["wall_s"]),
        "speed_idle": round(60 * words / cost["cpu_s"] * min(cores(), 2)),
    }


def ngram(args: argparse.Namespace) -> dict[str, Any]:
    from ilme.lm.arpa import write_arpa
    from ilme.lm.ngram_train import NGramOptions, train_ngram
    from ilme.tokens import Tokens

    random, size, count = np.random.default_rng(0), args.vocabulary, args.tokens
    common = np.minimum((size * random.random(count) ** 3).astype(np.int64) + 1, size - 1)
    usual = random.integers(1, size, (size, 8))
    ids = np.where(random.random(count) < 0.6, usual[np.roll(common, 1), random.integers(0, 8, count)], common)
    ids[random.random(count) < 1 / 20] = 0
    tokens = Tokens(tuple(map(str, range(size))), eos=0)
    trained, cost = measured(lambda: train_ngram(ids.astype(np.uint16), tokens, NGramOptions(args.order, (0, 0, 1))))
    with tempfile.TemporaryDirectory() as folder:
        _, writing = measured(lambda: write_arpa(Path(folder) / "m.arpa", trained.arpa, tokens))
    return {"tokens": count, "order": args.order, "seen": trained.seen, "kept": trained.kept, **cost, "write": writing}


def rows(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from ilme.lm.ngram import NGramScorer, build_automaton
    from ilme.lm.ngram_train import NGramOptions, train_ngram
    from ilme.tokens import Tokens

    torch.set_num_threads(1)
    random, size = np.random.default_rng(0), args.vocabulary
    ids = np.minimum((size * random.random(2_000_000) ** 3).astype(np.int64) + 1, size - 1)
    ids[::20] = 0
    tokens = Tokens(tuple(map(str, range(size))), eos=0)
    trained = train_ngram(ids, tokens, NGramOptions(4))
    scorer = NGramScorer(build_automaton(trained.arpa), tokens, device=args.device)
    _, state = scorer.start(25)
    labels = torch.from_numpy(ids[ids > 0][: 25 * 400].reshape(400, 25).copy()).to(args.device)
    times = []
    for row in labels:
        if args.device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        _, state = scorer.score(row, state)
        if args.device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return {
        "rows": [25, size],
        "ngrams": trained.kept,
        "device": args.device,
        "median_ms": round(float(np.median(times)), 3),
        "p95_ms": round(float(np.quantile(times, 0.95)), 3),
    }


def synth(args: argparse.Namespace) -> dict[str, Any]:
    from ilme.data.synth import synthesise

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "t.txt"
        if args.text:
            lines = Path(args.text).read_text(encoding="utf-8").splitlines()[: args.sentences]
        else:
            lines = [
                f"this is sentence {i} of a text that is spoken to see how long it takes" for i in range(args.sentences)
            ]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        report, cost = measured(lambda: synthesise([str(source)], Path(folder) / "out"))
    return {
        "utterances": report.spoken,
        "hours": round(report.seconds / 3600, 3),
        **cost,
        "times_real_time": round(report.seconds / cost["wall_s"]),
        "speed_idle": round(report.seconds / cost["cpu_s"] * min(cores(), 2)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "ngram", "rows", "synth"])
    parser.add_argument("--text", help="file or glob of real text; made up where absent")
    parser.add_argument("--exclude", help="evaluation text or manifest, for prepare")
    parser.add_argument("--profile", default="spoken")
    parser.add_argument("--megabytes", type=float, default=100, help="of made-up text, for prepare")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--order", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=2000)
    args = parser.parse_args()
    result = {"prepare": prepare, "ngram": ngram, "rows": rows, "synth": synth}[args.what](args)
    print(json.dumps({"benchmark": args.what, "cores": cores(), **result}))


if __name__ == "__main__":
    main()
