"""faster-whisper, file by file: from standard input the number of a file and a beam, back its text and CPU seconds."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from importlib.metadata import version

import numpy as np
from faster_whisper import WhisperModel


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of CTranslate2")
    parser.add_argument("audio", help="an .npz file of waveforms of 16 kHz, by number")
    parser.add_argument("--format", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    model = WhisperModel(chosen.model, device="cpu", compute_type=chosen.format, cpu_threads=chosen.threads)
    audio = np.load(chosen.audio)
    print(json.dumps({"system": f"faster-whisper {version('faster-whisper')}, CTranslate2 {version('ctranslate2')}"}))
    sys.stdout.flush()
    for line in sys.stdin:
        name, beam = line.split()
        samples = audio[name]
        began = cpu_seconds()
        segments, _ = model.transcribe(
            samples,
            beam_size=int(beam),
            language="en",
            temperature=0.0,  # ours decodes once, too
            condition_on_previous_text=False,
            without_timestamps=len(samples) <= 30 * 16_000,  # a long file is cut by its time stamps
        )
        text = " ".join(segment.text.strip() for segment in segments)
        print(json.dumps({"cpu_seconds": cpu_seconds() - began, "text": text}), flush=True)


main()
