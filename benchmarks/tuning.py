"""The tuner against a full grid of decodes, on one dev set, in one run.

    python -m benchmarks.tuning MODEL DEV --lm LM [--subtracted internal] [--beam 8] [--limit 300] [--length 0 3]
    python -m benchmarks.tuning --toy --seeds 0 1 2 3 4 --limit 200 --out docs/results/data/tuning-toy.json

Both use the same search, and search the same ranges of λ_T and μ. The grid decodes dev 12 × 8 times; the tuner may
decode it 5 times. With `--length` the tuner runs once more with the length reward β as a third weight, still in 5
decodes, and the grid once more with β fixed at what that found: a grid with hindsight. The encoder's time is counted
for none: its outputs are made once, before any clock starts. Prints JSON, with CPU time beside wall time: on a machine
with other work only the former can be compared. `--toy` needs no files: a transducer that is written down rather than
trained, over made-up speech (`benchmarks.toy_transducer`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import publish
from benchmarks.toy_transducer import make_toy
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import Parts, load_recogniser
from ilme.recogniser.options import Options
from ilme.recogniser.recogniser import Recogniser
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.tune import tune_decoder


def main() -> None:
    options = arguments()
    rows = []
    if options.toy:
        for seed in options.seeds:
            recogniser, utterances = make_toy(seed, options.limit or 200)
            rows.append({"seed": seed, **both(recogniser, utterances, options)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    else:
        utterances = read_utterances(Path(options.dev), split=options.split, limit=options.limit)
        parts = Parts(options.model, options.lm, options.subtracted, options.device)
        recogniser = load_recogniser(parts)
        recogniser.options = unguarded(recogniser, options.length_normalisation)
        rows.append(both(recogniser, utterances, options))
    publish({"rows": rows}, options.out)


def unguarded(recogniser: Recogniser, length_normalisation: float) -> Options:
    """The search alone: a guard would hide what is measured."""
    if recogniser.is_transducer:
        return TransducerOptions()
    return AttentionOptions(length_normalisation=length_normalisation)


def both(recogniser: Recogniser, utterances: Sequence[Utterance], options: argparse.Namespace) -> dict[str, Any]:
    """The tuner, then the grid, on the same cached encoder outputs."""
    references = {u.id: u.text for u in utterances}
    decoder = SearchDecoder(recogniser, utterances, options=DecodingOptions(batch_size=options.batch, cache="device"))
    decoder.decode(FusionWeights(), 1)  # encodes everything

    tuner = run_tuner(decoder, recogniser, utterances, (0.0, 0.0), options)
    grid = run_grid(decoder, references, 0.0, options)
    row = {
        "utterances": len(utterances),
        "words": sum(len(text.split()) for text in references.values()),
        "beam": options.beam,
        "without_fusion": tuner["steps"][0]["wer"],
        "grid": grid,
        "tuner": tuner,
        "times_faster": round(grid["seconds"] / tuner["seconds"], 1),
        "times_less_cpu": round(grid["cpu_seconds"] / tuner["cpu_seconds"], 1),
    }
    if options.length:
        three = run_tuner(decoder, recogniser, utterances, tuple(options.length), options)
        row["tuner_with_length"] = three
        row["times_less_cpu_with_length"] = round(grid["cpu_seconds"] / three["cpu_seconds"], 1)
        row["grid_with_hindsight"] = run_grid(decoder, references, three["weights"]["length"], options)
    return row


def run_tuner(
    decoder: SearchDecoder,
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    length: tuple[float, float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What 5 decodes find, β within `length`."""
    widest = (0.0, options.widest)
    began, worked = time.perf_counter(), time.process_time()
    tuning = TuningOptions(
        beam=options.beam,
        space=WeightSpace(lm=widest, subtracted=widest, length=length),
        normaliser=options.normaliser,
        replicates=0,
    )
    result = tune_decoder(
        decoder, recogniser, utterances, tuning, lambda step: tell("tuner", step.weights, step.counts.rate)
    )
    return {
        "decodes": result.decodes,
        "wer": round(result.dev.rate, 3),
        "weights": asdict(result.weights),
        "steps": [
            {**asdict(s.weights), "wer": round(s.counts.rate, 3), "list_wer": round(s.list_wer, 3)}
            for s in result.steps
        ],
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
    }


def run_grid(
    decoder: SearchDecoder, references: Mapping[str, str], length: float, options: argparse.Namespace
) -> dict[str, Any]:
    """The best of 12 × 8 (λ_T, μ) in the search, all with the same β, and every one of them."""
    began, worked = time.perf_counter(), time.process_time()
    points = {}
    for lm in np.linspace(0.0, options.widest, 12):
        for subtracted in np.linspace(0.0, options.widest, 8):
            weights = FusionWeights(lm=float(lm), subtracted=float(subtracted), length=length)
            texts = {i: nbest[0].text for i, nbest in decoder.decode(weights, options.beam).items()}
            points[weights] = measure(references, texts, normaliser_name=options.normaliser).rate
            tell("grid", weights, points[weights])
    best = min(points, key=lambda w: (points[w], w.lm + w.subtracted))
    return {
        "decodes": len(points),
        "wer": round(points[best], 3),
        "weights": asdict(best),
        "points": [[round(w.lm, 4), round(w.subtracted, 4), round(rate, 3)] for w, rate in points.items()],
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
    }


def tell(who: str, weights: FusionWeights, rate: float) -> None:
    """One line on stderr for each decode: the whole takes long."""
    point = f"λ {weights.lm:.4f} μ {weights.subtracted:.4f} β {weights.length:.4f}"
    print(f"{who} {point}: WER {rate:.3f}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("dev", nargs="?", default="")
    parser.add_argument("--toy", action="store_true", help="made-up speech instead of MODEL and DEV")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the toys")
    parser.add_argument("--out", type=Path, help="where the JSON is written as well")
    parser.add_argument("--lm", default="")
    parser.add_argument("--subtracted", default="internal")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--split", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--normaliser", default="none", choices=("none", "spoken", "whisper"))
    parser.add_argument("--length-normalisation", type=float, default=0.0)
    parser.add_argument("--length", type=float, nargs=2, metavar=("LOW", "HIGH"), help="range of β, for a second run")
    parser.add_argument("--widest", type=float, default=0.7, help="largest λ and μ of both searches")
    options = parser.parse_args()
    if not options.toy and not (options.model and options.dev and options.lm):
        parser.error("give MODEL, DEV and --lm, or --toy")
    return options


if __name__ == "__main__":
    main()
