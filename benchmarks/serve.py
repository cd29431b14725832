"""The service under load, beside `ilme transcribe` and beside another server, on the same files in one run.

python -m benchmarks.serve manifest.jsonl --model tiny.en.pt --json out/serve-load.json
python -m benchmarks.serve manifest.jsonl --model CT2_FOLDER --peer PYTHON --requests 200 --json out/serve-peer.json

Clients send files of mixed lengths, each its next when the last is answered. Every decoding process has one thread.
Other work on the machine takes wall time and little CPU time, so costs are CPU seconds: of the service those of all its
processes, uploads, HTTP and voice activity among them. `ilme transcribe` runs before and after, once over each distinct
file; the mean is what it takes for as many files as were requested. Memory is that of all processes, pages that they
share counted once (PSS), and of each; of each tenth of the requests the largest is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.timing import publish
from ilme.data.audio import audio_info
from ilme.data.audio_files import find_audio
from ilme.evaluation.metrics import measure

PEER = Path(__file__).parent / "peers" / "faster_whisper_server.py"
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, help="audio_filepath, duration, split and text of each recording")
    parser.add_argument("--split", default="tune")
    parser.add_argument("--longest", type=float, default=15.0, help="seconds")
    parser.add_argument(
        "--model", default="bundled/rnnt", help="of the service; of the other server too, if it has one"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--distinct", type=int, default=250, help="files that the requests are drawn from")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes of the service")
    parser.add_argument("--peer", default="", help="an interpreter with faster-whisper, FastAPI and uvicorn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="transcribe the files and print the CPU seconds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    said = chosen(args)
    files = list(said)
    if args.alone:
        print(json.dumps(transcribed(args.model, files)))
        return
    seconds = {file: audio_info(file).seconds for file in files}
    drawn = (files * (args.requests // len(files) + 1))[: args.requests]
    random.Random(args.seed + 1).shuffle(drawn)
    audio = sum(seconds[file] for file in drawn)
    serve = [sys.executable, "-m", "ilme.cli", "serve", args.model, "--workers", str(args.workers), "--port"]
    found: dict[str, Any] = {
        "model": Path(args.model).name,
        "requests": len(drawn),
        "clients": args.clients,
        "workers": args.workers,
    }
    found |= {"files": len(files), "audio_seconds": round(audio, 1)}
    alone = [_transcribed_apart()]
    found["serve"] = asyncio.run(loaded(serve, drawn, audio, args.clients))
    if args.peer:
        peer = [args.peer, str(PEER), args.model, "--port"]
        found["peer"] = asyncio.run(loaded(peer, drawn, audio, args.clients))
        found["peer_over_serve"] = round(found["peer"]["cpu_seconds"] / found["serve"]["cpu_seconds"], 3)
    alone.append(_transcribed_apart())
    cpu = [run["cpu_seconds"] for run in alone]
    expected = float(np.mean(cpu)) * audio / sum(seconds.values())
    found["transcribe"] = {
        "files": len(files),
        "cpu_seconds": cpu,
        "cpu_seconds_for_all_requests": round(expected, 1),
        "audio_per_cpu_second": round(audio / expected, 2),
    }
    found["throughput_of_transcribe"] = round(expected / found["serve"]["cpu_seconds"], 3)
    found["transcribe"]["wer"] = errors(said, alone[0]["texts"])
    for name in {"serve", "peer"} & found.keys():
        found[name]["wer"] = errors(said, found[name].pop("texts"))
    publish(found, args.json, seed=args.seed)


def chosen(args: argparse.Namespace) -> dict[Path, str]:
    """The recordings that are sent, and what is said in them."""
    rows = [json.loads(line) for line in args.manifest.read_text().splitlines()]
    fit = [row for row in rows if row["split"] == args.split and row["duration"] <= args.longest]
    drawn = random.Random(args.seed).sample(fit, min(args.distinct, len(fit)))
    return {args.manifest.parent / row["audio_filepath"]: row["text"] for row in drawn}


def errors(said: dict[Path, str], texts: dict[str, str]) -> float:
    """WER of what was answered, in per cent."""
    references = {file.name: text for file, text in said.items() if file.name in texts}
    return round(measure(references, texts, normaliser_name="whisper").rate, 2)


def _transcribed_apart() -> dict[str, Any]:
    """In a process of its own, so that its memory and CPU time are its own."""
    call = [sys.executable, "-m", "benchmarks.serve", *sys.argv[1:], "--alone"]
    return dict(json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]))


def transcribed(model: str, files: list[Path]) -> dict[str, Any]:
    """The CPU seconds without those of loading, which a service spends once."""
    from ilme.workflows.transcribe import Job, TranscribeOptions, transcribe_files

    recogniser = Job(model=model).load()
    began = time.process_time()
    outcomes = list(transcribe_files(recogniser, find_audio(files), TranscribeOptions()))
    spent = time.process_time() - began
    return {
        "cpu_seconds": round(spent, 2),
        "texts": {o.file.path.name: o.transcript.text for o in outcomes if o.transcript},
    }


async def loaded(command: list[str], files: list[Path], audio: float, clients: int) -> dict[str, Any]:
    """What a server that is started by this command and a port does with the files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=one_thread
    )
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=clients + 4)
    memory: list[tuple[float, list[float]]] = []  # share of the requests that is done, MB of each process
    left, latencies, statuses, texts = list(files), list[float](), dict[int, int](), dict[str, str]()
    try:
        async with httpx.AsyncClient(timeout=7200, limits=limits) as client:
            await _ready(client, url)
            await _send(client, url, files[0])  # whatever is made with the first request is made
            ready, before = _memory_mb(server.pid), _cpu_seconds(server.pid)

            async def one() -> None:
                while left:
                    file = left.pop()
                    began = time.perf_counter()
                    answer = await _send(client, url, file)
                    latencies.append(time.perf_counter() - began)
                    statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    if len(latencies) % 50 == 0:
                        print(len(latencies), statuses, memory[-1], file=sys.stderr, flush=True)
                    if answer.status_code == 200:
                        texts[file.name] = answer.json()["text"].strip()

            async def watch() -> None:
                while True:
                    memory.append((len(latencies) / len(files), _memory_mb(server.pid)))
                    await asyncio.sleep(1)

            watching = asyncio.create_task(watch())
            began = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(clients)))
            spent = time.perf_counter() - began
            watching.cancel()
            cpu = _cpu_seconds(server.pid) - before
            memory.append((1.0, _memory_mb(server.pid)))
    finally:
        server.terminate()
        server.wait(60)
    tenths = [max((sum(mb) for at, mb in memory if min(int(at * 10), 9) == t), default=0.0) for t in range(10)]
    return {
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "failures": len(files) - statuses.get(200, 0),
        "seconds": round(spent, 1),
        "cpu_seconds": round(cpu, 1),
        "audio_per_cpu_second": round(audio / cpu, 2),
        "latency_median": round(float(np.median(latencies)), 2),
        "latency_p95": round(float(np.quantile(latencies, 0.95)), 2),
        "memory_mb_ready": [round(mb, 1) for mb in ready],
        "memory_mb_each_process_at_end": [round(mb, 1) for mb in memory[-1][1]],
        "memory_mb_in_each_tenth": [round(mb, 1) for mb in tenths],
        "memory_growth_percent": round(100 * (max(tenths[1:]) / tenths[0] - 1), 2),
        "texts": texts,
    }


async def _send(client: httpx.AsyncClient, url: str, file: Path) -> httpx.Response:
    return await client.post(f"{url}/v1/audio/transcriptions", files={"file": (file.name, file.read_bytes())})


async def _ready(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(1500):
        with suppress(httpx.TransportError):
            if (await client.get(f"{url}/ready")).status_code == 200:
                return
        await asyncio.sleep(0.2)
    raise TimeoutError("the service did not become ready")


def _family(pid: int) -> list[int]:
    """A process and all that came from it."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents[int(process.name)] = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    family = [pid]
    for parent in family:
        family += sorted(child for child, its in parents.items() if its == parent)
    return family


def _memory_mb(pid: int) -> list[float]:
    """Resident memory of each process of a service, shared pages divided among those that share them."""
    found = []
    for one in _family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            found.append(next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:")))
    return found


def _cpu_seconds(pid: int) -> float:
    """Of all processes of a service, those that have ended among them."""
    total = 0
    for one in _family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))  # its own, and its ended children's
    return total / TICKS


if __name__ == "__main__":
    main()
