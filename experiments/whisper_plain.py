"""Whisper without any LM: word errors of several sizes on the same utterances, in runs that may be stopped.

python -m experiments.whisper_plain decode --model ggml-base.en.bin --speech librispeech-dev-clean --work base.en.jsonl
python -m experiments.whisper_plain decode --model tiny.en.pt --speech librispeech-dev-clean --work tiny.en.jsonl
python -m experiments.whisper_plain report --speech librispeech-dev-clean --work tiny.en.jsonl base.en.jsonl \
    --json docs/results/data/whisper-plain.json

The split `test` is decoded in an order drawn with a seed, part by part, each part batched by length and written when it
is finished; a run that was stopped goes on there. So what is done at any time is a random sample of the split. `report`
counts the utterances that all files have, after Whisper's own normaliser. Search and guards are those of
`benchmarks.whisper`, whose finished system BS (`BS.json` of its work folder) `report` takes too.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish
from benchmarks.whisper_sets import in_memory, joined, note, windowed

from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import TRANSFORMER, default_options
from ilme.recogniser.recogniser import Recogniser


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "report"))
    parser.add_argument("--model", default="", help="needed to decode")
    parser.add_argument("--speech", type=Path, required=True, help="folder or manifest with splits")
    parser.add_argument("--split", default="test")
    parser.add_argument("--work", type=Path, nargs="+", required=True, help="texts, one JSON object a line")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="utterances that are searched at once")
    parser.add_argument("--part", type=int, default=48, help="utterances between two writes")
    parser.add_argument("--seconds", type=float, default=0.0, help="no part is begun later than this; 0: no limit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    utterances = read_utterances(args.speech, split=args.split)
    random.Random(args.seed).shuffle(utterances)
    if args.what == "decode":
        decode(args, utterances)
        return
    publish(compared(args, utterances), args.json, seed=args.seed)


def decode(args: argparse.Namespace, utterances: Sequence[Utterance]) -> None:
    """Appends the texts of what is not in the file yet."""
    torch.set_num_threads(args.threads)
    (file,) = args.work
    model = load_model(args.model)
    model.pack()
    recogniser = Recogniser(model, options=default_options(model, args.beam))
    batches = DecodingOptions(batch_seconds=args.batch * 31.0, batch_size=args.batch, cache="none")
    known = {row["id"] for row in rows(file)}
    left = [u for u in utterances if u.id not in known]
    began = time.monotonic()
    for part in parts(left, args.part):
        if args.seconds and time.monotonic() - began > args.seconds:
            break
        started = time.process_time()
        read = windowed(in_memory(part, 1), model.window)
        lists = SearchDecoder(recogniser, read, options=batches).decode(FusionWeights(), args.beam)
        texts = joined({i: nbest[0].text if nbest else "" for i, nbest in lists.items()})
        spent = round((time.process_time() - started) / len(part), 3)
        with file.open("a", encoding="utf-8") as out:
            for u in part:
                row = {"id": u.id, "text": texts[u.id], "beam": args.beam, "CPU seconds": spent}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
        known |= {u.id for u in part}
        note(f"{len(known)} of {len(utterances)}, {spent} CPU s an utterance")


def rows(file: Path) -> list[dict[str, Any]]:
    """The finished utterances of a run; a last line that was cut off does not count."""
    if file.suffix == ".json":  # a system of `benchmarks.whisper`
        return [{"id": i, "text": text} for i, text in json.loads(file.read_text(encoding="utf-8"))["texts"].items()]
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def parts(utterances: Sequence[Utterance], size: int) -> Iterator[Sequence[Utterance]]:
    for at in range(0, len(utterances), size):
        yield utterances[at : at + size]


def compared(args: argparse.Namespace, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """WER of every file on the utterances that all have, and each against the first."""
    found = {file.stem: {row["id"]: row for row in rows(file)} for file in args.work}
    shared = [u for u in utterances if all(u.id in texts for texts in found.values())]
    results = {
        name: measure(
            {u.id: u.text for u in shared},
            {u.id: texts[u.id]["text"] for u in shared},
            speakers={u.id: u.speaker for u in shared},
            normaliser_name="whisper",
        )
        for name, texts in found.items()
    }
    systems: dict[str, dict[str, Any]] = {}
    first = next(iter(results))
    for name, measured in results.items():
        interval = bootstrap_interval(measured)
        systems[name] = {
            "WER": round(measured.rate, 3),
            "95 %": [round(interval.low, 2), round(interval.high, 2)],
            **asdict(measured.total),
        }
        timed = [found[name][u.id]["CPU seconds"] for u in shared if "CPU seconds" in found[name][u.id]]
        if timed:
            systems[name]["CPU seconds per utterance"] = round(sum(timed) / len(timed), 3)
        if name != first:
            pair = compare(name, measured, first, results[first])
            systems[name][f"against {first}"] = {
                "relative %": round(-pair.relative, 2),
                "p bootstrap": round(pair.p_bootstrap, 5),
            }
    return {
        "split": args.split,
        "utterances": len(shared),
        "of": len(utterances),
        "speakers": len({u.speaker for u in shared}),
        "hours": round(sum(u.seconds for u in shared) / 3600, 2),
        "search": {k: str(v) for k, v in asdict(TRANSFORMER).items()} | {"beam": args.beam, "stop_after": args.beam},
        "normaliser": "whisper",
        "systems": systems,
        "texts": {name: {u.id: texts[u.id]["text"] for u in shared} for name, texts in found.items()},
    }


if __name__ == "__main__":
    main()
