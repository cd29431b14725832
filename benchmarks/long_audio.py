"""Memory and time of `ilme.load_domain(domain).transcribe` on a file of hours, beside a file of minutes.

python -m benchmarks.long_audio --domain my-domain --speech librispeech-dev-clean --minutes 180 --spoken 20

The file is speech for --spoken minutes, spread evenly in stretches of one minute over --minutes of silence; it is
written to a temporary folder as 16-bit FLAC. Each file is transcribed in a process of its own, whose largest resident
memory is reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import publish

RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", required=True)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--minutes", type=int, nargs="+", default=[3, 180])
    parser.add_argument("--spoken", type=int, nargs="+", default=[3, 20], help="minutes of speech in each file")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--file", type=Path, help="transcribe this file and print what it took")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.file:
        transcribe(args)
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for minutes, spoken in zip(args.minutes, args.spoken, strict=True):
            file = Path(folder) / f"{minutes}.flac"
            write(file, args.speech, minutes, spoken)
            call = ["-m", "benchmarks.long_audio", "--domain", args.domain, "--file", file, "--batch", str(args.batch)]
            out = subprocess.run([sys.executable, *call], check=True, stdout=subprocess.PIPE, text=True).stdout
            found[f"{minutes} minutes"] = {"minutes of speech": spoken, **json.loads(out.splitlines()[-1])}
            print(found, file=sys.stderr, flush=True)
    publish({"batch": args.batch, **found}, args.json)


def write(file: Path, speech: Path, minutes: int, spoken: int) -> None:
    """A minute at a time: speech where the next spoken minute is due, silence elsewhere."""
    import soundfile

    from ilme.data.utterances import read_utterances

    utterances = read_utterances(speech, split="tune")
    at, done = 0, 0
    with soundfile.SoundFile(file, "w", RATE, 1, subtype="PCM_16") as out:
        for minute in range(minutes):
            block = np.zeros(60 * RATE, np.float32)
            if done * minutes <= minute * spoken and done < spoken:
                done, filled = done + 1, 0
                while filled < len(block):
                    samples = utterances[at % len(utterances)].samples(RATE)[: len(block) - filled]
                    block[filled : filled + len(samples)] = samples
                    filled, at = filled + len(samples), at + 1
            out.write(block)


def transcribe(args: argparse.Namespace) -> None:
    import torch

    import ilme

    torch.set_num_threads(1)
    recogniser = ilme.load_domain(args.domain)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    transcript = recogniser.transcribe(args.file, batch=args.batch)
    row = {
        "seconds of audio": transcript.seconds,
        "windows": len(transcript.segments),
        "words": len(transcript.text.split()),
        "CPU seconds": round(time.process_time() - began, 1),
        "largest memory, model loaded, MB": round(loaded / 1024, 1),
        "largest memory at the end, MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "the audio as float32, MB": round(transcript.seconds * RATE * 4 / 2**20, 1),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
