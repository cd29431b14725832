"""`ilme transcribe` beside the search that it runs: what do start, reading, batches, processes and writing cost?

    python -m benchmarks.transcribe --domain my-domain --speech librispeech-dev-clean --json docs/results/data/…

Two jobs: many short files, cut out of the speech, and one file of hours, the utterances one after the other. Each is
done by the command, with its CPU time and that of all of its processes, and window by window in one process, where
only features, encoder and search are counted. The command on a file of silence, in which nothing is searched, is the
start. CPU seconds, since other work shares the machine; each job is done in turns, and the least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import own_cpu_seconds, publish

RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", required=True)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each of them")
    parser.add_argument("--minutes", type=float, default=180.0, help="of the long file")
    parser.add_argument("--alone", type=float, default=1e9, help="minutes of audio after which the search alone stops")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the audio is written; a temporary folder if not given")
    parser.add_argument("--search", type=Path, help="search this folder in this process and print what that took")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.search:
        print(json.dumps(searched(args.domain, args.search, 60 * args.alone)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        jobs = write_audio(args, folder)
        started = [command(args.domain, folder / "silence", folder / f"silent{k}", 1) for k in range(3)]
        start = min(started, key=lambda run: run["CPU s"])  # the first reads files that are not in memory yet
        print({"start": start}, file=sys.stderr, flush=True)
        rows = []
        for what, audio in jobs.items():
            call = ["-m", "benchmarks.transcribe", "--domain", args.domain, "--search", str(audio)]
            call += ["--alone", str(args.alone)]
            with subprocess.Popen([sys.executable, *call], stdout=subprocess.PIPE, text=True) as alone:
                whole = command(args.domain, audio, folder / f"{audio.name}-out", args.workers)
                said = alone.communicate()[0]
            found, seconds = json.loads(said.splitlines()[-1]), seconds_of(audio)
            row = {"job": what, "files": len(list(audio.iterdir())), "seconds of audio": round(seconds), **found}
            row |= {f"command, {name}": value for name, value in whole.items()}
            of_all = found["search, CPU s"] * seconds / found["searched, s of audio"]
            row["search / command"] = round(of_all / whole["CPU s"], 3)
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    publish({"workers": args.workers, "start": start, "rows": rows}, args.json)


def write_audio(args: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """The folders of the two jobs, and one with a file of silence."""
    import soundfile

    for name in ("silence", "short", "long"):
        (folder / name).mkdir()
    soundfile.write(folder / "silence" / "silence.flac", np.zeros(RATE, np.float32), RATE)
    length = int(args.seconds * RATE)
    pieces = (s[at : at + length] for s in spoken(args.speech) for at in range(0, len(s) - length + 1, length))
    for k, piece in zip(range(args.files), pieces, strict=False):
        soundfile.write(folder / "short" / f"{k:05}.flac", piece, RATE)
    left = int(args.minutes * 60 * RATE)
    with soundfile.SoundFile(folder / "long" / "long.flac", "w", RATE, 1) as file:
        for samples in spoken(args.speech):
            file.write(samples[:left])
            left -= len(samples)
            if left <= 0:
                break
    return {f"{args.files} files of {args.seconds:g} s": folder / "short", f"{args.minutes:g} minutes": folder / "long"}


def spoken(speech: Path) -> Iterator[np.ndarray[Any, Any]]:
    """Utterance after utterance, and again from the first."""
    from ilme.data.utterances import read_utterances

    utterances = read_utterances(speech, split="tune")
    while True:
        for utterance in utterances:
            yield utterance.samples(RATE)


def command(domain: str, audio: Path, out: Path, workers: int) -> dict[str, float]:
    """CPU and other seconds of the command with all of its processes."""
    call = [sys.executable, "-m", "ilme.cli", "transcribe", "--domain", domain, str(audio), "--out", str(out)]
    began = time.perf_counter()
    process = subprocess.Popen([*call, "--workers", str(workers)], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{call} ended with {os.waitstatus_to_exitcode(status)}")
    return {"CPU s": round(used.ru_utime + used.ru_stime, 2), "s": round(time.perf_counter() - began, 1)}


def seconds_of(audio: Path) -> float:
    from ilme.data.audio import audio_info

    return sum(audio_info(file).seconds for file in audio.iterdir())


def searched(domain: str, audio: Path, most: float) -> dict[str, Any]:
    """The CPU seconds of features, encoder and search alone, in the batches of the command."""
    from ilme.data.audio_files import find_audio
    from ilme.workflows.transcribe import Job, TranscribeOptions, in_batches, recognise_windows

    recogniser, heard, taken = Job(domain).load(), [], []

    def search(batches: Any) -> Iterator[Any]:
        for windows in batches:
            began = own_cpu_seconds()
            found = recognise_windows(recogniser, windows)
            taken.append(own_cpu_seconds() - began)
            heard.append(sum(window.end - window.start for window in windows))
            if sum(heard) >= most:
                return
            yield found

    files = find_audio([str(audio)])
    for _ in in_batches(files, recogniser.rate, recogniser.window, search, TranscribeOptions()):
        pass
    return {"searched, s of audio": round(sum(heard)), "search, CPU s": round(sum(taken), 2)}


if __name__ == "__main__":
    main()
