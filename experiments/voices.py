"""How well a recogniser of people's speech understands synthetic voices: Whisper's word errors on the same sentences.

python -m experiments.voices domains/speeches/dev.txt --model ggml-base.en.bin --json docs/results/data/voices.json

Sentences of 8 to 30 words are drawn from the text with a seed, and spoken by espeak-ng and by the neural voice, each
utterance in a voice drawn for it. Greedy search, Whisper's own normaliser.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish
from benchmarks.whisper_sets import in_memory, joined, note, windowed

from ilme.data.synth import SynthOptions, synthesise
from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.evaluation.significance import bootstrap_interval
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser

BATCH = 16  # utterances searched at once
SHARES = {"espeak-ng": 0.0, "neural": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    model.pack()
    recogniser = Recogniser(model, options=default_options(model, 1))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("".join(f"{line}\n" for line in sentences(args)), encoding="utf-8")
        voices = {
            name: understood(recogniser, text, Path(folder) / name, share, args) for name, share in SHARES.items()
        }
    report = {"model": Path(args.model).name, "sentences": args.sentences, "voices": voices}
    publish(report, args.json, seed=args.seed)


def sentences(args: argparse.Namespace) -> list[str]:
    lines = args.text.read_text(encoding="utf-8").splitlines()
    fitting = sorted({line for line in lines if 8 <= len(line.split()) <= 30})
    return random.Random(args.seed).sample(fitting, args.sentences)


def understood(recogniser: Any, text: Path, folder: Path, share: float, args: argparse.Namespace) -> dict[str, Any]:
    """Speaks the text and counts what comes back wrong."""
    options = SynthOptions(seed=args.seed, natural=share, workers=1)
    started = time.process_time()
    spoken = synthesise([str(text)], folder, options)
    made = time.process_time() - started
    utterances = read_utterances(folder)
    read = windowed(in_memory(utterances, 1), recogniser.model.window)
    batches = DecodingOptions(batch_seconds=BATCH * 31.0, batch_size=BATCH, cache="none")
    lists = SearchDecoder(recogniser, read, options=batches).decode(FusionWeights(), 1)
    texts = joined({i: nbest[0].text if nbest else "" for i, nbest in lists.items()})
    measured = measure({u.id: u.text for u in utterances}, texts, normaliser_name="whisper")
    interval = bootstrap_interval(measured)
    note(f"{folder.name}: {measured.total.rate:.2f}")
    return {
        "utterances": spoken.spoken,
        "hours": round(spoken.seconds / 3600, 3),
        "seconds of speech a CPU second": round(spoken.seconds / made, 1),
        "WER": round(measured.total.rate, 2),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        "substitutions": measured.total.substitutions,
        "deletions": measured.total.deletions,
        "insertions": measured.total.insertions,
    }


if __name__ == "__main__":
    main()
