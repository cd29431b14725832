"""`ilme serve --ray` with two replicas on one machine, one of which is killed under load: is a request lost?

python -m benchmarks.serve_ray manifest.jsonl --json out/serve-ray.json

Clients send recordings, each its next when the last is answered. After a third of the answers one of the replicas that
decode is ended with SIGKILL. The texts must be those of `ilme transcribe`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from benchmarks.serve import _family, _ready, _send, chosen
from benchmarks.timing import publish

BUSY = {  # Ray gives a proxy 5 s to answer before it starts it anew: too few on a machine that is busy
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, help="audio_filepath, duration, split and text of each recording")
    parser.add_argument("--split", default="tune")
    parser.add_argument("--longest", type=float, default=15.0, help="seconds")
    parser.add_argument("--distinct", type=int, default=50, help="files that the requests are drawn from")
    parser.add_argument("--model", default="bundled/rnnt")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--port", type=int, default=8479)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = list(chosen(args))
    command = [sys.executable, "-m", "ilme.cli", "serve", args.model, "--ray", "local"]
    command += ["--workers", str(args.replicas), "--port", str(args.port)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", **BUSY}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=one_thread)
    try:
        found = asyncio.run(killed(server.pid, args, [files[k % len(files)] for k in range(args.requests)]))
    finally:
        server.terminate()
        server.wait(300)
    found["texts_that_changed"] = sum(len(texts) > 1 for texts in found.pop("texts").values())
    about = {"model": args.model, "replicas": args.replicas, "clients": args.clients, "requests": args.requests}
    publish(about | {"files": len(files)} | found, args.json, seed=args.seed)


async def killed(pid: int, args: argparse.Namespace, files: list[Path]) -> dict:
    url = f"http://127.0.0.1:{args.port}"
    left, latencies, statuses = list(files), list[float](), dict[str, int]()
    texts: dict[str, set[str]] = {}
    ended = 0
    limits = httpx.Limits(max_keepalive_connections=0)  # a server may close an idle connection just when it is used
    async with httpx.AsyncClient(timeout=3600, limits=limits) as client:
        await _ready(client, url)

        async def one() -> None:
            nonlocal ended
            while left:
                file = left.pop()
                began = time.perf_counter()
                try:
                    answer = await _send(client, url, file)
                    status = str(answer.status_code)
                except httpx.TransportError as error:
                    status = type(error).__name__
                latencies.append(time.perf_counter() - began)
                statuses[status] = statuses.get(status, 0) + 1
                if status == "200":
                    texts.setdefault(file.name, set()).add(answer.json()["text"])
                if len(latencies) >= len(files) // 3 and not ended:
                    ended = decoders(pid)[0]
                    os.kill(ended, signal.SIGKILL)
                if len(latencies) % 20 == 0:
                    print(len(latencies), statuses, decoders(pid), file=sys.stderr, flush=True)

        before = decoders(pid)
        await asyncio.gather(*(one() for _ in range(args.clients)))
        for _ in range(600):
            if len(after := decoders(pid)) == args.replicas:
                break
            await asyncio.sleep(0.5)
        metrics = (await client.get(f"{url}/metrics")).text.splitlines()
    died = next(line.split()[1] for line in metrics if line.startswith("ilme_workers_died_total"))
    return {
        "replicas_before": len(before),
        "replicas_killed": int(ended in before and ended not in after),
        "replicas_after": len(after),
        "statuses": statuses,
        "failures": len(files) - statuses.get("200", 0),
        "windows_that_went_to_another_replica": int(float(died)),
        "latency_median": round(float(np.median(latencies)), 2),
        "latency_largest": round(max(latencies), 2),
        "texts": texts,
    }


def decoders(pid: int) -> list[int]:
    """The processes of the replicas that decode."""
    found = []
    for one in _family(pid):
        try:
            if b":Decoder" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
