"""Whisper on a CPU beside faster-whisper: CPU seconds and word errors on the same weights and files, in one run.

    python -m benchmarks.whisper_peer time --model FOLDER --speech librispeech-dev-clean --split tune \
        --peer-python PATH --lm novels-4gram.safetensors --json docs/results/data/whisper-peer.json
    python -m benchmarks.whisper_peer errors …          # texts of --count utterances by each system
    python -m benchmarks.whisper_peer silence …         # word errors and time by how much silence the encoder reads

The model is a folder of CTranslate2, which both read. The systems take turns file by file, so that what else the
machine does falls on all alike; a file's cost is the least of --repeats. faster-whisper is run without fallbacks to
other temperatures and without the text before: one decode, as here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ilme
from benchmarks.timing import own_cpu_seconds, publish
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.formats import Format

RATE = 16_000
DRIVER = Path(__file__).resolve().parent / "peers" / "faster_whisper_files.py"
WEIGHTS = FusionWeights(lm=0.2, subtracted=0.15)
Run = Callable[[str, int], dict[str, Any]]  # number of a file and a beam to its text and CPU seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "errors", "silence"))
    parser.add_argument("--model", required=True, help="a folder of CTranslate2")
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--split", default="tune")
    parser.add_argument("--peer-python", default="", help="an interpreter that has faster-whisper")
    parser.add_argument("--lm", default="", help="an LM over the model's tokens, for the rows with ILME")
    parser.add_argument("--internal", default="silence")
    parser.add_argument("--formats", nargs="+", default=["int8", "float32"])
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", nargs="+", type=float, default=[4.0, 10.0, 28.0], help="seconds of the files")
    parser.add_argument("--each", type=int, default=3, help="files of each length")
    parser.add_argument("--long", type=float, default=0.0, help="seconds of one more file, made of many utterances")
    parser.add_argument("--count", type=int, default=300, help="utterances of `errors` and `silence`")
    parser.add_argument(
        "--strides", nargs="+", type=int, default=[1, 8, 4], help="the first is what others differ from"
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    utterances = read_utterances(args.speech, split=args.split)
    work = {"time": time_files, "errors": errors, "silence": silences}[args.what]
    publish(work(args, utterances), args.json, seed=args.seed)


def time_files(args: argparse.Namespace, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """CPU seconds of each system on files of each length."""
    audio: dict[str, Any] = {}
    for seconds in args.lengths:
        nearest = sorted(utterances, key=lambda u: abs(u.seconds - seconds))[: args.each]
        audio |= {f"{seconds:g}_s,{k}": u.samples(RATE) for k, u in enumerate(nearest)}
    if args.long:
        audio[f"{args.long:g}_s,0"] = joined(utterances, args.long, args.seed)
    rows = []
    for format in args.formats:
        with systems(args, format, audio) as running:
            for beam in args.beams:
                found = {name: [alternate(running, name, beam, args.repeats)] for name in audio}
                rows += summed(found, format, beam, args)
    return {"rows": rows, "files": {name: round(len(a) / RATE, 2) for name, a in audio.items()}}


def alternate(running: dict[str, Run], name: str, beam: int, repeats: int) -> dict[str, float]:
    """The least CPU seconds of each system on one file, which they decode in turn."""
    taken: dict[str, list[float]] = {system: [] for system in running}
    for system in itertools.islice(itertools.cycle(running), repeats * len(running)):
        taken[system].append(running[system](name, beam)["cpu_seconds"])
    return {system: min(seconds) for system, seconds in taken.items()}


def summed(found: dict[str, Any], format: str, beam: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each length: the mean over its files, and our shares of the peer's time."""
    for length, names in itertools.groupby(sorted(found), key=lambda name: name.partition(",")[0]):
        files = [found[name][0] for name in names]
        mean = {system: statistics.fmean(file[system] for file in files) for system in files[0]}
        peer = mean.get("faster-whisper")
        row: dict[str, Any] = {"format": format, "beam": beam, "threads": args.threads}
        row["length"] = length.replace("_", " ")
        row |= {system: round(seconds, 4) for system, seconds in mean.items()}
        if peer:
            row |= {f"{system} / faster-whisper": round(s / peer, 3) for system, s in mean.items() if s != peer}
        print(json.dumps(row), flush=True)
        yield row


def errors(args: argparse.Namespace, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """Word errors of each system on the same utterances."""
    drawn = sample(args, utterances)
    audio = {str(k): u.samples(RATE) for k, u in enumerate(drawn)}
    rows = []
    for format, beam in itertools.product(args.formats, args.beams):
        with systems(args, format, audio) as running:
            for system, run in running.items():
                if system == "ilme, ILME":  # its weights are those of no task: only its time means something
                    continue
                done = [run(name, beam) for name in audio]
                row = {"system": system, "format": format, "beam": beam} | rate(drawn, [d["text"] for d in done])
                rows.append(row | {"CPU s per utterance": round(statistics.fmean(d["cpu_seconds"] for d in done), 4)})
                print(json.dumps(rows[-1]), flush=True)
    return {"utterances": len(drawn), "rows": rows}


def silences(args: argparse.Namespace, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """Word errors and time by how many positions of silence are read."""
    drawn = sample(args, utterances)
    audio = [u.samples(RATE) for u in drawn]
    rows: list[dict[str, Any]] = []
    for format, beam in itertools.product(args.formats, args.beams):
        model = ilme.load_model(args.model)
        recogniser = Recogniser(model, options=default_options(model, beam)).pack(format)
        whole: list[str] = []
        for stride in args.strides:
            model.options = replace(model.options, silence=stride)
            began, texts = own_cpu_seconds(), []
            for k in range(0, len(audio), 8):
                texts += [nbest[0].text if nbest else "" for nbest in recogniser.nbest(audio[k : k + 8])]
            row = {"one position of silence in": stride, "format": format, "beam": beam}
            row |= rate(drawn, texts)
            whole = whole or texts
            row["texts that differ"] = sum(a != b for a, b in zip(texts, whole, strict=True))
            rows.append(row | {"CPU s per utterance": round((own_cpu_seconds() - began) / len(audio), 4)})
            print(json.dumps(rows[-1]), flush=True)
    return {"utterances": len(drawn), "rows": rows}


def sample(args: argparse.Namespace, utterances: Sequence[Utterance]) -> list[Utterance]:
    """Utterances that fit into a window, longest first, so that a batch has some of one length."""
    fitting = [u for u in utterances if u.seconds <= 30]
    drawn = random.Random(args.seed).sample(fitting, min(args.count, len(fitting)))
    return sorted(drawn, key=lambda u: (-u.seconds, u.id))


def rate(utterances: Sequence[Utterance], texts: Sequence[str]) -> dict[str, Any]:
    """The word error rate after Whisper's own normaliser."""
    found = measure(
        {u.id: u.text for u in utterances},
        {u.id: text for u, text in zip(utterances, texts, strict=True)},
        normaliser_name="whisper",
    )
    return {"WER": round(found.rate, 2)}


def joined(utterances: Sequence[Utterance], seconds: float, seed: int) -> Any:
    """One long recording of utterances drawn at random."""
    parts: list[Any] = []
    for u in random.Random(seed).sample(list(utterances), len(utterances)):
        parts.append(u.samples(RATE))
        if sum(map(len, parts)) >= seconds * RATE:
            break
    return np.concatenate(parts)[: int(seconds * RATE)]


@contextmanager
def systems(args: argparse.Namespace, format: Format, audio: dict[str, Any]) -> Iterator[dict[str, Run]]:
    """The systems by name, the peer in a process of its own; each has decoded one file to warm up."""
    model = ilme.load_model(args.model)
    plain = Recogniser(model, options=default_options(model)).pack(format)
    running: dict[str, Run] = {"ilme": ours(plain, audio)}
    if args.lm:
        lm = ilme.load_lm(args.lm, model)
        internal = internal_lm(model, args.internal)
        fused = Recogniser(model, lm=lm, subtracted=internal, weights=WEIGHTS, options=default_options(model))
        running["ilme, ILME"] = ours(fused, audio)
    with tempfile.TemporaryDirectory() as folder:
        peer: subprocess.Popen[str] | None = None
        if args.peer_python:
            file = Path(folder) / "audio.npz"
            np.savez(file, **audio)
            command = [args.peer_python, str(DRIVER), args.model, str(file), "--format", format]
            command += ["--threads", str(args.threads)]
            peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running = {"faster-whisper": asked(peer), **running}
        try:
            for run in running.values():
                run(next(iter(audio)), 1)
            yield running
        finally:
            if peer is not None:
                peer.communicate()


def ours(recogniser: Recogniser, audio: dict[str, Any]) -> Run:
    def run(name: str, beam: int) -> dict[str, Any]:
        recogniser.options = default_options(recogniser.model, beam)
        began = own_cpu_seconds()
        text = recogniser.transcribe(audio[name], rate=RATE).text
        return {"cpu_seconds": own_cpu_seconds() - began, "text": text}

    return run


def asked(peer: subprocess.Popen[str]) -> Run:
    assert peer.stdin is not None and peer.stdout is not None
    stdin, stdout = peer.stdin, peer.stdout
    print(json.loads(stdout.readline())["system"], flush=True)

    def run(name: str, beam: int) -> dict[str, Any]:
        print(f"{name} {beam}", file=stdin, flush=True)
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    return run


if __name__ == "__main__":
    main()
