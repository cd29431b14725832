"""How many words each system has right, by how often training heard them.

python -m experiments.heard_words out/study/real-words/test-rnnt-cross/results.json \
    out/study/real-words/text/source-train.txt --into docs/results/data/study-real-words.json

Prints what share of the words each system has wrong or missing; with --into, an existing results file gets the rows as
"words by how often training heard them".
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ilme.evaluation.analysis import by_frequency
from ilme.evaluation.results import Results

EDGES = (0, 4, 49, 499)  # never, 1 to 4 times, 5 to 49, 50 to 499, more
KEY = "words by how often training heard them"


def heard_words(results: Results, counts: Counter[str]) -> list[dict[str, Any]]:
    """One row for each frequency: its share of the words, and the share of those that each system has wrong."""
    systems = {name: by_frequency(measured, counts, EDGES) for name, measured in results.measurements.items()}
    first = next(iter(systems.values()))
    total = sum(group.words for group in first)
    rows: list[dict[str, Any]] = []
    for k, group in enumerate(first):
        wrong = {name: round(100 - groups[k].recall, 1) if group.words else None for name, groups in systems.items()}
        rows.append({"heard in training": group.name, "words, %": round(100 * group.words / total, 1), **wrong})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("text", type=Path, nargs="+", help="what was heard, a sentence a line")
    parser.add_argument("--into", type=Path)
    args = parser.parse_args()
    counts = Counter(word for file in args.text for word in file.read_text(encoding="utf-8").split())
    rows = heard_words(Results.load(args.results), counts)
    print("| " + " | ".join(rows[0]) + " |\n" + "| --- " * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    if args.into:
        found = json.loads(args.into.read_text(encoding="utf-8")) | {KEY: rows}
        args.into.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
