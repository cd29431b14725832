"""The tuner against a full grid of decodes, on one dev set, in one run.

    python benchmarks/tuning.py MODEL DEV --lm LM [--subtracted internal] [--beam 8] [--limit 300] [--device cpu]

Both search the same space with the same search. The grid decodes dev 12 × 8 times; the tuner may decode it 5 times. The
encoder's time is counted for neither: its outputs are made once, before either clock starts. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ilme.decoding.decoder import DecodingOptions, SearchDecoder
from ilme.decoding.loading import Parts, load_recogniser
from ilme.decoding.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.search.attention import AttentionOptions
from ilme.tuning.tuner import TuningOptions, tune
from ilme.tuning.weight_search import WeightSpace


def main() -> None:
    options = arguments()
    utterances = read_utterances(Path(options.dev), split=options.split, limit=options.limit)
    parts = Parts(options.model, options.lm, options.subtracted, options.device)
    attention = AttentionOptions(length_normalisation=options.length_normalisation)
    recogniser = load_recogniser(parts, attention=attention)
    references = {u.id: u.text for u in utterances}
    decoder = SearchDecoder(recogniser, utterances, options=DecodingOptions(batch_size=options.batch, cache="device"))
    decoder.decode(FusionWeights(), 1)  # encodes everything
    space = WeightSpace(lm=(0.0, options.widest), subtracted=(0.0, options.widest))

    began = time.perf_counter()
    result = tune(
        decoder,
        references,
        options=TuningOptions(
            beam=options.beam,
            space=space,
            normaliser=options.normaliser,
            length_exponent=recogniser.length_exponent,
            replicates=0,
        ),
        speakers={u.id: u.speaker for u in utterances},
    )
    tuner_seconds = time.perf_counter() - began

    began = time.perf_counter()
    grid = {}
    for lm in np.linspace(0.0, options.widest, 12):
        for subtracted in np.linspace(0.0, options.widest, 8):
            weights = FusionWeights(lm=float(lm), subtracted=float(subtracted))
            texts = {i: nbest[0].text for i, nbest in decoder.decode(weights, options.beam).items()}
            grid[weights] = measure(references, texts, normaliser_name=options.normaliser).rate
    grid_seconds = time.perf_counter() - began
    best = min(grid, key=lambda w: grid[w])
    print(
        json.dumps(
            {
                "utterances": len(utterances),
                "beam": options.beam,
                "without_fusion": round(grid[FusionWeights()], 3),
                "grid": {"decodes": len(grid), "wer": round(grid[best], 3), "weights": asdict(best)},
                "tuner": {
                    "decodes": result.decodes,
                    "wer": round(result.dev.rate, 3),
                    "weights": asdict(result.weights),
                },
                "grid_seconds": round(grid_seconds, 1),
                "tuner_seconds": round(tuner_seconds, 1),
                "times_faster": round(grid_seconds / tuner_seconds, 1),
            },
            indent=1,
        )
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("dev")
    parser.add_argument("--lm", required=True)
    parser.add_argument("--subtracted", default="internal")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--split", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--normaliser", default="none", choices=("none", "spoken", "whisper"))
    parser.add_argument("--length-normalisation", type=float, default=0.0)
    parser.add_argument("--widest", type=float, default=0.7, help="largest λ and μ of both searches")
    return parser.parse_args()


if __name__ == "__main__":
    main()
