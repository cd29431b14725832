"""Memory of `ilme transcribe` over an hour of audio and over 2,000 short files: does it grow as work is done?

python -m benchmarks.flat_memory --model bundled/rnnt --json docs/results/data/flat-memory.json
python -m benchmarks.flat_memory --model tiny.en.pt --only hour

The audio is made of the bundled recordings. Each run is a process of its own, which notes after every batch its
resident memory, and the most that it was since the batch before (the first batch is left out of these, since the model
is loaded before it). Of each tenth of the run the largest is reported, after batches and at any time, and by how much
the largest of the last nine exceeds that of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import publish

RATE = 16_000
PAGE = os.sysconf("SC_PAGESIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled/rnnt")
    parser.add_argument("--only", choices=("hour", "files"))
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--batch_seconds", type=float, default=60.0)
    parser.add_argument("--audio", type=Path, help="transcribe this folder and print the memory it took")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.audio:
        print(json.dumps(watched(args)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recordings = bundled(folder)
        for what in [args.only] if args.only else ["hour", "files"]:
            audio = hour(folder, recordings, args.minutes) if what == "hour" else files(folder, recordings, args.files)
            call = ["-m", "benchmarks.flat_memory", "--model", args.model, "--audio", str(audio)]
            call += ["--batch_seconds", str(args.batch_seconds)]
            out = subprocess.run([sys.executable, *call], check=True, stdout=subprocess.PIPE, text=True).stdout
            found[what] = json.loads(out.splitlines()[-1])
            print(found, file=sys.stderr, flush=True)
    publish({"model": args.model, "batch_seconds": args.batch_seconds, **found}, args.json)


def bundled(folder: Path) -> list[Path]:
    """The recordings that the package ships."""
    from ilme.workflows.bundle import read_bundle

    read_bundle().unpack(folder / "bundle")
    return sorted((folder / "bundle").rglob("*.opus"))


def hour(folder: Path, recordings: list[Path], minutes: int) -> Path:
    """One file of so many minutes: the recordings one after the other, half a second of silence between."""
    import soundfile

    from ilme.data.audio import load_audio

    out = folder / "hour"
    out.mkdir()
    with soundfile.SoundFile(out / "hour.flac", "w", RATE, 1) as file:
        k = written = 0
        while written < minutes * 60 * RATE:
            samples = np.append(load_audio(recordings[k % len(recordings)], RATE), np.zeros(RATE // 2, np.float32))
            file.write(samples)
            k, written = k + 1, written + len(samples)
    return out


def files(folder: Path, recordings: list[Path], count: int) -> Path:
    """So many files, each a copy of a recording."""
    out = folder / "files"
    out.mkdir()
    for k in range(count):
        shutil.copyfile(recordings[k % len(recordings)], out / f"{k:05d}.opus")
    return out


def watched(args: argparse.Namespace) -> dict[str, object]:
    """Transcribes a folder, and watches this process meanwhile."""
    from ilme.workflows.transcribe import TranscribeOptions, transcribe

    after: list[tuple[float, float]] = []  # share of the seconds that are done, resident MB
    most: list[tuple[float, float]] = []  # the same, the most since the batch before

    def progress(done: float, total: float) -> None:
        after.append((done / total, resident()))
        most.append((done / total, highest()))

    began = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        options = TranscribeOptions(batch_seconds=args.batch_seconds)
        outcomes = transcribe(args.audio, model=args.model, out=out, options=options, progress=progress)
    failed = [outcome.error for outcome in outcomes if outcome.transcript is None]
    return {
        "files": len(outcomes), "failed": len(failed),
        "minutes": round(sum(o.transcript.seconds for o in outcomes if o.transcript) / 60, 1),
        "CPU seconds": round(time.process_time() - began, 1),
        "at any time": in_tenths(most[1:]), "after a batch": in_tenths(after),
    }  # fmt: skip


def in_tenths(samples: list[tuple[float, float]]) -> dict[str, object]:
    """The largest of each tenth, and by how much the largest of the last nine exceeds the first."""
    tenths = [max((mb for at, mb in samples if t / 10 <= at < (t + 1) / 10 + (t == 9)), default=0.0) for t in range(10)]
    growth = round(100 * (max(tenths[1:]) / tenths[0] - 1), 2)
    return {
        "MB in each tenth": [round(mb, 1) for mb in tenths],
        "first": round(tenths[0], 1),
        "largest after it": round(max(tenths[1:]), 1),
        "last": round(tenths[-1], 1),
        "growth %": growth,
    }


def resident() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def highest() -> float:
    """The most resident memory of this process since this was last asked, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    Path("/proc/self/clear_refs").write_text("5")
    return int(found[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
