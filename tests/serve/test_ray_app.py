"""Ray Serve: what is batched together, and a replica that is killed while requests are under way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.serve", reason="Ray Serve is not installed (pip install 'ilme[ray]')")

from ray.exceptions import ActorDiedError

from ilme.errors import BadInputError
from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.serve.batching import Key
from ilme.serve.metrics import Metrics
from ilme.serve.options import ServeOptions
from ilme.serve.ray_app import Asking, RayPool, application, batch_size, in_groups
from ilme.serve.tasks import Failure, Recognise, Settings
from ilme.workflows.transcribe import Job

JOB = Job(model="none")
OPTIONS = ServeOptions(batch_seconds=60.0, batch_size=16)


def asking(seconds: float, name: str = "a", **settings: Any) -> Asking:
    return Asking(Key(name, Settings(**settings)), JOB, Window(0.0, seconds, np.zeros(1, np.float32)))


def test_a_batch_is_measured_by_its_longest_window() -> None:
    assert batch_size(OPTIONS, [asking(1.0), asking(20.0), asking(2.0)]) == 60
    assert batch_size(OPTIONS, [asking(1.0), asking(20.5), asking(2.0)]) > 60
    assert batch_size(OPTIONS, [asking(0.1)] * 16) == 60 and batch_size(OPTIONS, [asking(0.1)] * 17) > 60
    assert batch_size(OPTIONS, [asking(90.0)]) == 60, "one window always fits"


def test_only_like_windows_are_searched_together() -> None:
    several = [asking(1), asking(1, "b"), asking(2), asking(1, words=True)]
    assert in_groups(several) == [[0, 2], [1], [3]]


class Dying:
    """A handle whose replicas die over so many questions."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.asked: list[str] = []
        self.search, self.run = _Method(self, "search"), _Method(self, "run")


class _Method:
    def __init__(self, handle: Dying, name: str) -> None:
        self.handle, self.name = handle, name

    async def remote(self, given: Any) -> Any:
        self.handle.asked.append(self.name)
        if self.handle.deaths:
            self.handle.deaths -= 1
            raise ActorDiedError()
        found = [Segment(0.0, 1.0, "sea")]
        return [found] if isinstance(given, Recognise) else found


@pytest.mark.parametrize(
    ("deaths", "asked"),
    [(0, ["search"]), (1, ["search", "run"]), (2, ["search", "run", "run"]), (9, ["search", "run", "run", "run"])],
)
def test_what_a_dead_replica_had_goes_to_another(deaths: int, asked: list[str]) -> None:
    async def main() -> None:
        handle, metrics = Dying(deaths), Metrics()
        pool = RayPool(handle, metrics)
        found = pool.submit("a", JOB, Window(0.0, 2.0, np.zeros(1, np.float32)))
        assert pool.seconds == 2.0
        answer = await found
        assert isinstance(answer, Failure) if deaths == 9 else answer[0].text == "sea"
        assert handle.asked == asked
        assert f"ilme_workers_died_total {min(deaths, 4):.1f}" in metrics.text().decode()
        await asyncio.sleep(0)
        assert pool.seconds == 0

    asyncio.run(main())


def test_the_arguments_of_a_file_are_checked(models: Path) -> None:
    for says, args in {
        "no argument 'domain'": {"domain": "x"},
        "at least one": {},
        "options": {"domains": [str(models / "sea")], "options": {"batch": 1}},
        "no domain folder": {"domains": "nothing"},
    }.items():
        with pytest.raises(BadInputError, match=says):
            application(args)
    assert application({"domains": [str(models / "sea")], "options": {"voice_activity": False}}) is not None


@pytest.mark.slow
def test_a_replica_killed_under_load_costs_no_request(models: Path, wave: Path) -> None:
    """Two replicas on this machine; the first is killed while both have work."""
    import socket
    import subprocess
    import sys
    import threading
    import time

    import httpx

    psutil = pytest.importorskip("psutil", reason="it finds the replicas' processes")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ilme.cli", "serve", str(models / "sea"), "--ray", "local", "--workers", "2"]
    command += ["--port", str(port), "--options.voice_activity", "false"]
    patient = {f"RAY_SERVE_PROXY_{what}_CHECK_TIMEOUT_S": "120" for what in ("READY", "HEALTH")}
    environment = {**os.environ, **patient}  # Ray starts a proxy anew that does not answer within 5 s
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1500):
            try:
                if httpx.get(f"{url}/ready", timeout=60).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        statuses: list[int] = []
        texts: set[str] = set()

        def ask() -> None:
            for _ in range(10):
                found = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": wave.read_bytes()}, timeout=300)
                statuses.append(found.status_code)
                texts.add(found.json()["text"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(statuses) < 10 and any(t.is_alive() for t in threads):
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        replicas = [p for p in family if ":Decoder" in " ".join(p.cmdline())]
        assert len(replicas) == 2
        os.kill(replicas[0].pid, signal.SIGKILL)
        for thread in threads:
            thread.join(300)
        assert statuses == [200] * 80 and len(texts) == 1
    finally:
        process.terminate()
        process.wait(120)
