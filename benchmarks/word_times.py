"""How far words' times are from where espeak-ng put the words: `python -m benchmarks.word_times OUT.json MODEL ...`.

Every model hears the same sentences in three voices. A word counts if the model wrote it where it was spoken; its error
is the distance of its start from the synthesiser's own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from benchmarks.timing import publish
from ilme.data.audio import resample
from ilme.data.espeak import RATE_HZ, Voice, speak_timed
from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser

VOICES = (Voice("en-us"), Voice("en", "f3"), Voice("en-gb-x-rp", "m3"))
OTHERS = (Voice("en-gb-scotland", "f2", 160, 60), Voice("en-us-nyc", "m5", 190, 40), Voice("en-029", "f4", 150, 55))
LEAD = 0.4  # seconds of silence before each sentence
MARKS = ".,?!;:\"'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON lines with a text each")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="sentences that are passed over before")
    parser.add_argument("--other-voices", action="store_true", help="speak with other voices, at other rates")
    args = parser.parse_args()
    texts = [json.loads(line)["text"].lower() for line in args.manifest.read_text(encoding="utf-8").splitlines()]
    texts = [t for t in texts if 8 <= len(t.split()) <= 18][args.first :][: args.sentences]
    voices = OTHERS if args.other_voices else VOICES
    rows = {Path(name).name: measured(name, texts, voices) for name in args.models}
    publish({"sentences": len(texts), "models": rows}, args.out)


def measured(name: str, texts: list[str], voices: Sequence[Voice]) -> dict[str, Any]:
    """Errors of one model, in milliseconds."""
    recogniser = Recogniser(load_model(name))
    errors: list[float] = []
    spoken, began = 0, time.perf_counter()
    for k, text in enumerate(texts):
        samples, known = speak_timed(text, voices[k % len(voices)])
        audio = resample((samples / 32768).astype(np.float32), RATE_HZ, recogniser.rate)
        audio = np.concatenate([np.zeros(int(LEAD * recogniser.rate), np.float32), audio])
        starts = [LEAD + start for _, start in known]
        words = [text[place:].split()[0].strip(MARKS) for place, _ in known]
        found = [w for s in recogniser.transcribe(audio, words=True).segments for w in s.words]
        spoken += len(words)
        for op in Levenshtein.opcodes(words, [w.text.lower().strip(MARKS) for w in found]):
            if op.tag == "equal":
                pairs = zip(range(op.src_start, op.src_end), range(op.dest_start, op.dest_end), strict=True)
                errors += [1000 * (found[b].start - starts[a]) for a, b in pairs]
    away = np.abs(errors)
    return {
        "words": spoken,
        "written": len(errors),
        "median": round(float(np.median(away)), 1),
        "bias": round(float(np.median(errors)), 1),
        "p90": round(float(np.quantile(away, 0.9)), 1),
        "within_100": round(100 * float((away <= 100).mean()), 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
