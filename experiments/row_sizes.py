"""Which numbers of rows should packed products be made of? Twelve as before, and thirteen with those of a beam of 25.

    python -m experiments.row_sizes --rounds 5 --json docs/results/data/row-sizes.json

The AED search of `benchmarks.search`, one utterance, beam 25, float32, with Shallow Fusion and with ILME at the same
hypotheses. The two sets take turns in one process, and each step's least CPU time of all rounds is summed.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from benchmarks.search import EQUAL, Bench, least
from benchmarks.timing import publish

from benchmarks import workload
from ilme.models import packed

SETS = {
    "before": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "now": packed.SIZES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(workload.build(), 1)
    bench.pack("float32")
    runs = {method: bench.search("AED", method, 25) for method in ("SF", EQUAL)}
    steps: dict[Any, list[list[float]]] = {turn: [] for turn in itertools.product(SETS, runs)}
    for _ in range(args.rounds):
        for name, method in steps:
            packed.SIZES = SETS[name]
            runs[method](1, workload.T)
            steps[name, method].append(bench.steps)
    seconds = {turn: least([rounds]) for turn, rounds in steps.items()}
    rows = []
    for name, sizes in SETS.items():
        sf, ilme = seconds[name, "SF"], seconds[name, EQUAL]
        row = {"sizes": name, "numbers of rows": list(sizes), "SF, CPU s": round(sf, 3), "ILME, CPU s": round(ilme, 3)}
        rows.append(row | {"ILME over SF": round(ilme / sf - 1, 3)})
    publish({"rounds": args.rounds, "rows": rows}, args.json, seed=0)


if __name__ == "__main__":
    main()
