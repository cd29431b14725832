"""A running service over tiny untrained models, in a thread of the tests' own process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from ilme.models.speech import SpeechNetwork
from ilme.serve.app import create_app
from ilme.serve.connections import PatientProtocol
from ilme.serve.options import ServeOptions
from ilme.serve.run import REALTIME, jobs_of
from ilme.serve.service import Service
from ilme.workflows.adapt import AdaptOptions, adapt
from tests.checkpoints import write_checkpoints, write_wave

KEY = "a secret of the tests"
NOISE = ServeOptions(voice_activity=False)  # untrained models write something for noise, which nobody would call speech


class Running:
    """A service that answers.

    Attributes:
        url: Where.
        service: What is behind it.
    """

    def __init__(self, service: Service, key: str = "", adapt: Path | None = None, **settings: object) -> None:
        self.service = service
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        http = partial(PatientProtocol, patience=service.options.head_timeout)
        config = uvicorn.Config(
            create_app(service, key=key, adapt=adapt), log_level="error", http=http, **REALTIME | settings
        )
        self.server = uvicorn.Server(config)
        self.loop: asyncio.AbstractEventLoop | None = None

        def run() -> None:
            asyncio.run(self.server.serve([listener]))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        self.wait_until(lambda: httpx.get(f"{self.url}/ready").status_code == 200)

    def wait_until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        """Waits for something to become true; long waits are only for machines that are busy."""
        waited = threading.Event()
        for _ in range(int(seconds / 0.02)):
            try:
                if true():
                    return
            except httpx.TransportError:
                pass
            waited.wait(0.02)
        raise TimeoutError(f"it did not become true within {seconds} s")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture(scope="package", autouse=True)
def short_windows() -> Iterator[None]:
    """Windows of a second, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechNetwork, "window", 1.0)
        yield


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny checkpoints rnnt and aed, and a domain `sea` of the first."""
    folder = write_checkpoints(tmp_path_factory.mktemp("served"))
    (folder / "text.txt").write_text("the sea was calm\nthe whale swam\n" * 5)
    adapt(
        folder / "rnnt",
        [str(folder / "text.txt")],
        folder / "sea",
        options=AdaptOptions(order=2, prune=(0,), beam=3),
    )
    return folder


@pytest.fixture(scope="package")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wave(tmp_path_factory.mktemp("waves") / "noise.wav", 1.2, 3)


@pytest.fixture(scope="package")
def long_wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than one window."""
    return write_wave(tmp_path_factory.mktemp("waves") / "long.wav", 3.3, 4)


@contextmanager
def running(models: Path, options: ServeOptions = NOISE, workers: int = 0, **settings: Any) -> Iterator[Running]:
    found = Running(Service(jobs_of([models / "sea"]), options, workers), **settings)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="package")
def server(models: Path) -> Iterator[Running]:
    with running(models, key=KEY) as found:
        yield found
