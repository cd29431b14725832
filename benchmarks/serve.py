"""The service under load beside `ilme transcribe` on the same files: `python -m benchmarks.serve FOLDER --json OUT`.

So many clients send files of mixed lengths, each its next when the last is answered. Both run one decoding process with
one thread. Throughput is seconds of audio for a second of time; the ratio to `ilme transcribe` is what batching over
requests, HTTP and uploads leave of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.timing import publish
from ilme.data.audio import audio_info
from ilme.data.audio_files import AudioFile, find_audio
from ilme.workflows.options import TranscribeOptions
from ilme.workflows.transcribe import Job, transcribe_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--model", default="bundled/rnnt")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    drawn = random.Random(args.seed).choices(find_audio([args.folder]), k=args.requests)
    seconds = sum(audio_info(file.path).seconds for file in drawn)
    alone = transcribed(args.model, drawn, seconds)
    served = asyncio.run(loaded(args.model, drawn, seconds, args.clients))
    found = {
        "requests": args.requests,
        "clients": args.clients,
        "audio_seconds": round(seconds, 1),
        "transcribe": alone,
        "serve": served,
        "ratio": round(served["audio_per_second"] / alone["audio_per_second"], 3),
    }
    publish(found, args.json, seed=args.seed)


def transcribed(model: str, files: list[AudioFile], seconds: float) -> dict[str, Any]:
    recogniser = Job(model=model).load()
    copies = [AudioFile(file.path, f"{k}/{file.name}") for k, file in enumerate(files)]
    began = time.perf_counter()
    done = sum(1 for outcome in transcribe_files(recogniser, copies, TranscribeOptions()) if outcome.transcript)
    spent = time.perf_counter() - began
    return {"files": done, "seconds": round(spent, 1), "audio_per_second": round(seconds / spent, 2)}


async def loaded(model: str, files: list[AudioFile], seconds: float, clients: int) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ilme.cli", "serve", model, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=clients + 4)
    try:
        async with httpx.AsyncClient(timeout=3600, limits=limits) as client:
            await _ready(client, url)
            memory = [_memory_mb(server.pid)]
            left, latencies, failures = list(files), list[float](), 0

            async def one() -> None:
                nonlocal failures
                while left:
                    file = left.pop()
                    began = time.perf_counter()
                    answer = await client.post(
                        f"{url}/v1/audio/transcriptions", files={"file": (file.path.name, file.path.read_bytes())}
                    )
                    latencies.append(time.perf_counter() - began)
                    failures += answer.status_code != 200
                    if len(latencies) == len(files) // 2:
                        memory.append(_memory_mb(server.pid))

            began = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(clients)))
            spent = time.perf_counter() - began
            memory.append(_memory_mb(server.pid))
    finally:
        server.terminate()
        server.wait(60)
    return {
        "failures": failures,
        "seconds": round(spent, 1),
        "audio_per_second": round(seconds / spent, 2),
        "latency_median": round(float(np.median(latencies)), 2),
        "latency_p95": round(float(np.quantile(latencies, 0.95)), 2),
        "memory_mb": memory,
    }


async def _ready(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(600):
        try:
            if (await client.get(f"{url}/ready")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    raise TimeoutError("the service did not become ready")


def _memory_mb(pid: int) -> float:
    """Resident memory of the service and its workers."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if int(process.name) == pid or parent == pid:
                total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            continue
    return round(total / 1e6, 1)


if __name__ == "__main__":
    main()
