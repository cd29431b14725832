"""Moonshine's ONNX graphs run as they are, beside the same weights read out of them: texts, scores, errors, time.

python -m experiments.moonshine_graph --package package/dist --model moonshine-tiny --lm novels.safetensors \
    --speech librispeech-dev-clean --count 30 --weights 0.2 0.15 --json docs/results/data/moonshine-graph.json

`--package` is the unpacked `dist` of @usefulsensors/moonshine-js 0.1.2, `--model` the folder that
`experiments.moonshine` makes of it. Utterances of the split `tune` are decoded with and without LM and internal LM; the
weights were set beforehand.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish

from experiments.moonshine import WEIGHTS
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.search.hypothesis import NBest

BATCHES = DecodingOptions(batch_seconds=60, batch_size=4, cache="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--weights", type=float, nargs=2, default=[0.2, 0.15])
    parser.add_argument("--internal", default="silence")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    everything = read_utterances(args.speech, split="tune")
    utterances = random.Random(args.seed).sample(everything, args.count)
    graph = load_model(args.package / WEIGHTS)
    opened = load_model(args.model)
    opened.pack()
    lm = load_lm(args.lm, opened.tokens, "cpu")
    fused = FusionWeights(lm=args.weights[0], subtracted=args.weights[1])
    hosts: dict[str, tuple[Any, Any]] = {
        "graph": (graph, internal_lm(graph, args.internal)),
        "weights": (opened, internal_lm(opened, args.internal)),
    }
    rows: dict[str, Any] = {}
    for system, weights in (("BS", FusionWeights()), (f"ILME {args.internal}", fused)):
        found: dict[str, dict[str, NBest]] = {}
        for name, (host, scorer) in hosts.items():
            scorers = {} if weights == FusionWeights() else {"lm": lm, "subtracted": scorer}
            recogniser = Recogniser(host, **scorers, options=default_options(host, args.beam))
            began = time.process_time()
            found[name] = SearchDecoder(recogniser, utterances, options=BATCHES).decode(weights, args.beam)
            rows[f"{system}, {name}"] = row(utterances, found[name]) | {
                "CPU seconds": round(time.process_time() - began, 1)
            }
            print(f"{system}, {name}", rows[f"{system}, {name}"], file=sys.stderr, flush=True)
        rows[f"{system}, both"] = agreement(found["graph"], found["weights"])
    report = {
        "utterances": len(utterances),
        "seconds of audio": round(sum(u.seconds for u in utterances), 1),
        "weights": asdict(fused),
        "systems": rows,
    }
    publish(report, args.json, seed=args.seed)


def row(utterances: list[Utterance], lists: dict[str, NBest]) -> dict[str, Any]:
    found = measure(
        {u.id: u.text for u in utterances},
        {u.id: lists[u.id][0].text for u in utterances},
        normaliser_name="whisper",
    )
    return {"WER": round(found.rate, 3), **asdict(found.total)}


def agreement(one: dict[str, NBest], other: dict[str, NBest]) -> dict[str, Any]:
    """How many best hypotheses are the same, and how far the scores of those differ."""
    pairs = [(one[i][0], other[i][0]) for i in one]
    same = [(a, b) for a, b in pairs if a.tokens == b.tokens]
    return {
        "same text": len(same),
        "of": len(pairs),
        "largest difference of log P": max((abs(a.scores.asr - b.scores.asr) for a, b in same), default=0.0),
        "largest difference of the internal LM's": max(
            (abs(a.scores.subtracted - b.scores.subtracted) for a, b in same), default=0.0
        ),
    }


if __name__ == "__main__":
    main()
