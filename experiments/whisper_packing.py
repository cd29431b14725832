"""Do packed weights change what Whisper writes? Texts, scores and CPU seconds of one tree, and two trees compared.

    python -m experiments.whisper_packing decode --model FOLDER --lm LM --speech CORPUS --format int8 --out new.json
    python -m experiments.whisper_packing compare --before old*.json --after new*.json --json FILE

`decode` is run in each tree, on the same utterances, each alone, beam 5, without an LM and with ILME (silence).
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import own_cpu_seconds, publish

import ilme
from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser

METHODS = ("no LM", "ILME")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "compare"))
    parser.add_argument("--model")
    parser.add_argument("--lm")
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--format", default="float32")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="the first of them and the step to the next")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path, nargs="+")
    parser.add_argument("--after", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "decode":
        args.out.write_text(json.dumps(decoded(args)))
    else:
        publish({"rows": compared(args.before, args.after)}, args.json)


def decoded(args: argparse.Namespace) -> dict[str, Any]:
    utterances = [u for u in read_utterances(args.speech, split="tune") if u.seconds <= 30]
    first, step = args.part
    drawn = random.Random(1).sample(utterances, args.count)[first::step]
    model = ilme.load_model(args.model)
    options, lm = default_options(model, 5), ilme.load_lm(args.lm, model)
    fused = Recogniser(
        model,
        lm=lm,
        subtracted=internal_lm(model, "silence"),
        weights=FusionWeights(lm=0.2, subtracted=0.15),
        options=options,
    )
    systems = [Recogniser(model, options=options).pack(args.format), fused.pack(args.format)]
    rows, cpu = [], [0.0, 0.0]
    for u in drawn:
        row: list[Any] = [u.id, u.text]
        for i, system in enumerate(systems):
            began = own_cpu_seconds()
            found = system.nbest([u.samples(16_000)])[0]
            cpu[i] += own_cpu_seconds() - began
            row += [found[0].text, found[0].score] if found else ["", 0.0]
        rows.append(row)
    return {"format": args.format, "rows": rows, "cpu": cpu}


def compared(before: list[Path], after: list[Path]) -> list[dict[str, Any]]:
    """Format by format and method by method; texts also against those of float32 before."""
    old, new = gathered(before), gathered(after)
    reference = {row[0]: row for row in old["float32"]["rows"]}
    found = []
    for format, was in old.items():
        now = {row[0]: row for row in new[format]["rows"]}
        for i, method in enumerate(METHODS):
            at = 2 + 2 * i
            pairs = [(row, now[row[0]]) for row in was["rows"]]
            same = [(a, b) for a, b in pairs if a[at] == b[at]]
            rates = [word_errors([pair[side] for pair in pairs], at) for side in (0, 1)]
            found.append(
                {
                    "format": format,
                    "method": method,
                    "utterances": len(pairs),
                    "same text": len(same),
                    "largest change of a score, same text": max(abs(a[at + 1] - b[at + 1]) for a, b in same),
                    "as float32 before": sum(a[at] == reference[a[0]][at] for a, _ in pairs),
                    "as float32 after": sum(b[at] == reference[b[0]][at] for _, b in pairs),
                    "WER before": rates[0],
                    "WER after": rates[1],
                    "CPU s before": round(was["cpu"][i], 2),
                    "CPU s after": round(new[format]["cpu"][i], 2),
                    "after / before": round(new[format]["cpu"][i] / was["cpu"][i], 3),
                }
            )
    return found


def gathered(files: list[Path]) -> dict[str, dict[str, Any]]:
    """The rows of each format, of all files."""
    whole: dict[str, dict[str, Any]] = defaultdict(lambda: {"rows": [], "cpu": [0.0, 0.0]})
    for file in files:
        part = json.loads(file.read_text())
        into = whole[part["format"]]
        into["rows"] += part["rows"]
        into["cpu"] = [a + b for a, b in zip(into["cpu"], part["cpu"], strict=True)]
    return dict(whole)


def word_errors(rows: list[Any], at: int) -> float:
    said, texts = {row[0]: row[1] for row in rows}, {row[0]: row[at] for row in rows}
    return round(measure(said, texts, normaliser_name="whisper").rate, 2)


if __name__ == "__main__":
    main()
