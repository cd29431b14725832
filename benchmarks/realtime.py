"""The realtime service with people who speak at once: `python -m benchmarks.realtime DOMAIN MANIFEST --json OUT`.

`ilme serve DOMAIN` runs in processes of its own; every stream sends recordings at speaking pace, in pieces of 40 ms,
with a second of silence between them. Times are from when a sample was spoken, so that they hold the client's pieces,
the network, voice activity, the hearing, and the wait for the next hearing to agree.

    delay of a delta    until it came, from the first sample with which the model's best text has it (streaming models)
    delay of a word     until it came, from where the word begins, its own length included
    delay of a turn     until its final text came, from the end of the silence that ended it
    taken back          words of the deltas that the final text has otherwise
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from websockets.asyncio.client import connect

from benchmarks.timing import publish
from ilme.data.audio import load_audio
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.streaming import SpeechStream, can_stream
from ilme.serve.run import jobs_of

RATE, PIECE, SILENCE = 16_000, 640, 16_000
LOOK = 960  # samples between two looks at the best text: 60 ms, a frame of the small RNN-T
EVENT = "conversation.item.input_audio_transcription"


@dataclass
class Heard:
    """What came of one stream: (when, event), and the audio that was sent."""

    audio: np.ndarray
    reference: str
    began: float = 0.0
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class Turn:
    """A turn of a stream; times are seconds from the stream's beginning."""

    start: float
    end: float
    deltas: Sequence[tuple[float, str]]
    text: str
    done: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domain")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--split", default="tune")
    parser.add_argument("--model", default="", help="where the domain's model is now")
    parser.add_argument("--ranks", default="")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=45, help="of each stream, at least")
    parser.add_argument("--first", type=int, default=0, help="the first utterance of the split that is used")
    parser.add_argument("--first-in-line", action="store_true", help="before all else that runs on this machine (root)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    heard = recordings(args.manifest, args.split, args.first, args.streams, args.seconds)
    options = {"ranks": args.ranks} if args.ranks else {}
    if args.first_in_line:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    spent, load = asyncio.run(served(args.domain, args.model, args.ranks, heard))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    (job,) = jobs_of([args.domain], args.model, model_options=options).values()
    found = measured(job.load(), heard)
    seconds = sum(len(h.audio) for h in heard) / RATE
    about = {
        "streams": args.streams,
        "audio_seconds": round(seconds, 1),
        "load": load,
        "first_in_line": args.first_in_line,
    }
    publish(about | {"cpu_per_audio_second": round(spent / seconds, 4)} | found, args.json, seed=args.first)


def recordings(manifest: Path, split: str, first: int, streams: int, seconds: float) -> list[Heard]:
    """So many streams, each of whole utterances with a second of silence after each."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    left = iter([row for row in rows if row.get("split", split) == split][first:])
    found = []
    for _ in range(streams):
        pieces, texts = [np.zeros(SILENCE, np.float32)], []
        while sum(map(len, pieces)) < seconds * RATE:
            row = next(left)
            pieces += [load_audio(manifest.parent / row["audio_filepath"], RATE), np.zeros(SILENCE, np.float32)]
            texts.append(row["text"])
        found.append(Heard(np.concatenate(pieces), " ".join(texts)))
    return found


async def served(domain: str, model: str, ranks: str, heard: list[Heard]) -> tuple[float, float]:
    """Runs the service and all streams; the service's CPU seconds, and the machine's load at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ilme.cli", "serve", domain, "--port", str(port)]
    command += [*(("--model", model) if model else ()), *(("--ranks", ranks) if ranks else ())]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await _ready(f"http://127.0.0.1:{port}")
        warm = Heard(heard[0].audio[: 6 * RATE], "")
        await _stream(port, warm)
        before = _cpu_seconds(server.pid)
        await asyncio.gather(*(_stream(port, one) for one in heard))
        return _cpu_seconds(server.pid) - before, round(os.getloadavg()[0], 1)
    finally:
        server.terminate()
        server.wait(60)


async def _ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(600):
            try:
                if (await client.get(f"{url}/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise TimeoutError("the service did not become ready")


async def _stream(port: int, heard: Heard) -> None:
    async with connect(f"ws://127.0.0.1:{port}/v1/realtime?intent=transcription", max_size=None) as line:
        session = {"audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}}
        await line.send(json.dumps({"type": "session.update", "session": session}))
        while json.loads(await line.recv())["type"] != "session.updated":
            pass
        heard.began = time.perf_counter()
        sending = asyncio.create_task(_send(line, heard))
        while True:
            event = json.loads(await line.recv())
            if event["type"] == "input_audio_buffer.cleared":
                break
            heard.events.append((time.perf_counter() - heard.began, event))
        await sending


async def _send(line: Any, heard: Heard) -> None:
    for start in range(0, len(heard.audio), PIECE):
        piece = heard.audio[start : start + PIECE]
        await asyncio.sleep(max(0.0, heard.began + (start + len(piece)) / RATE - time.perf_counter()))
        pcm = np.clip(np.rint(piece * 32768), -32768, 32767).astype("<i2").tobytes()
        await line.send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}))
    await line.send(json.dumps({"type": "input_audio_buffer.commit"}))
    await line.send(json.dumps({"type": "input_audio_buffer.clear"}))


def _cpu_seconds(pid: int) -> float:
    """Of the service and its workers."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(process.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


# --- what it came to --------------------------------------------------------------------------------------------------


def turns_of(heard: Heard) -> list[Turn]:
    """The turns of a stream that has ended."""
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    deltas: dict[str, list[tuple[float, str]]] = {}
    over: set[str] = set()
    found = []
    for when, event in heard.events:
        kind, item = event["type"], event.get("item_id", "")
        if kind == "error" and event["error"]["code"] != "input_audio_buffer_commit_empty":
            raise RuntimeError(event["error"]["message"])
        if kind == "input_audio_buffer.speech_started":
            starts[item] = event["audio_start_ms"] / 1000
        elif kind == "input_audio_buffer.speech_stopped":
            ends[item] = event["audio_end_ms"] / 1000
        elif kind == "input_audio_buffer.committed":
            over.add(item)  # a delta after that is the rest of the final text
        elif kind == f"{EVENT}.delta" and item not in over:
            deltas.setdefault(item, []).append((when, event["delta"]))
        elif kind == f"{EVENT}.completed":
            end = ends.get(item, len(heard.audio) / RATE)
            found.append(Turn(starts[item], end, deltas.get(item, []), event["transcript"], when))
    return found


def measured(recogniser: Recogniser, heard: list[Heard]) -> dict[str, Any]:
    """Delays, flicker and word errors."""
    deltas: list[float] = []
    words: list[float] = []
    sent = wrong = 0
    turns = [(one, turn) for one in heard for turn in turns_of(one)]
    for one, turn in turns:
        audio = one.audio[int(turn.start * RATE) : int(turn.end * RATE)]
        if can_stream(recogniser):
            deltas += _delta_delays(recogniser, turn, audio)
        words += _word_delays(recogniser, turn, audio)
        mine, final = "".join(text for _, text in turn.deltas).split(), turn.text.split()
        sent += len(mine)
        wrong += min(Levenshtein.distance(mine, final[:k]) for k in range(len(final) + 1))
    texts = [" ".join(turn.text for turn in turns_of(one)) for one in heard]
    whole = [recogniser.transcribe(one.audio).text for one in heard]
    references = [one.reference for one in heard]
    return {
        "turns": len(turns),
        "delta_delay": spread(deltas),
        "word_delay": spread(words),
        "turn_delay": spread([turn.done - turn.end for _, turn in turns]),
        "words_sent": sent,
        "taken_back": wrong,
        "wer_live": error_rate(references, texts),
        "wer_whole": error_rate(references, whole),
    }


def error_rate(references: Sequence[str], texts: Sequence[str]) -> float:
    """Per cent of the words."""
    pairs = [(reference.split(), plain(text).split()) for reference, text in zip(references, texts, strict=True)]
    return round(100 * sum(Levenshtein.distance(*pair) for pair in pairs) / sum(len(r) for r, _ in pairs), 2)


def plain(text: str) -> str:
    """Lower case without punctuation, as the references are."""
    kept = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower())
    return " ".join(kept.split())


def spread(seconds: list[float]) -> dict[str, float]:
    """Percentiles, in milliseconds."""
    if not seconds:
        return {}
    of = {f"p{q}": round(1000 * float(np.quantile(seconds, q / 100))) for q in (50, 90, 95, 99)}
    return {"count": len(seconds), **of}


def _delta_delays(recogniser: Recogniser, turn: Turn, audio: np.ndarray) -> list[float]:
    """From the first look at which the best text begins with all that was sent, to the delta's coming."""
    stream = SpeechStream(recogniser)
    texts = (stream.feed(audio[start : start + LOOK]) for start in range(0, len(audio), LOOK))
    looks = [" ".join(text.split()) for text in texts]
    found, shown = [], ""
    for when, text in turn.deltas:
        shown += text
        first = next((k for k, look in enumerate(looks) if look.startswith(shown)), None)
        if first is not None:
            found.append(when - turn.start - (first + 1) * LOOK / RATE)
    return found


def _word_delays(recogniser: Recogniser, turn: Turn, audio: np.ndarray) -> list[float]:
    """From where a word begins, as the recogniser times it in the whole turn, to the delta that ends it."""
    timed = [word for s in recogniser.transcribe(audio, words=True).segments for word in s.words]
    when_sent: list[tuple[str, float]] = []
    shown = ""
    for when, text in turn.deltas:
        shown += text
        done = shown.split()
        when_sent = when_sent[: len(done) - 1] if len(done) <= len(when_sent) else when_sent
        when_sent += [(word, when) for word in done[len(when_sent) :]]
    found = []
    for op in Levenshtein.opcodes([word for word, _ in when_sent], [word.text for word in timed]):
        if op.tag == "equal":
            pairs = zip(range(op.src_start, op.src_end), range(op.dest_start, op.dest_end), strict=True)
            found += [when_sent[a][1] - turn.start - timed[b].start for a, b in pairs]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
