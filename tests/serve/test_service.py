"""Admission, time-outs, clients that leave, and an end that finishes what is under way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest

from ilme.errors import BadInputError
from ilme.serve import batching
from ilme.serve.service import Service
from ilme.serve.tasks import Recognise
from tests.serve.conftest import NOISE, Running, running

PATH = "/v1/audio/transcriptions"


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Searches wait for the second event, and set the first when they begin."""
    began, go_on = threading.Event(), threading.Event()
    run = Recognise.run

    def wait(self: Recognise, shelf: object) -> object:
        began.set()
        go_on.wait(60)
        return run(self, shelf)

    with monkeypatch.context() as patch:
        patch.setattr(Recognise, "run", wait)
        try:
            yield began, go_on
        finally:
            go_on.set()


def asked(server: Running, wave: Path, answers: list[httpx.Response]) -> threading.Thread:
    def ask() -> None:
        with wave.open("rb") as file:
            answers.append(httpx.post(f"{server.url}{PATH}", files={"file": file}, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_one_request_too_many_is_told_when_to_come_back(
    models: Path, wave: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(models, replace(NOISE, queue=2)) as server, held_up(monkeypatch) as (began, go_on):
        answers: list[httpx.Response] = []
        threads = [asked(server, wave, answers) for _ in range(2)]
        server.wait_until(lambda: server.service.under_way == 2 and began.is_set())
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError) as refused, wave.open("rb") as file:
            client.audio.transcriptions.create(file=file, model="sea")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/health").status_code == 200, "the loop is not held up"
        go_on.set()
        for thread in threads:
            thread.join(60)
        assert [a.status_code for a in answers] == [200, 200]
        with wave.open("rb") as file:
            assert client.audio.transcriptions.create(file=file, model="sea").text


def test_a_client_that_leaves_is_not_served(models: Path, wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(models) as server, held_up(monkeypatch) as (began, go_on):
        answers: list[httpx.Response] = []
        thread = asked(server, wave, answers)
        server.wait_until(began.is_set)  # the only worker is busy
        request = httpx.Request("POST", f"{server.url}{PATH}", files={"file": wave.read_bytes()})
        head = f"POST {PATH} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in request.headers.items()) + "\r\n"
        host, port = server.url.removeprefix("http://").split(":")
        waiting = server.service.pool.batcher
        with socket.create_connection((host, int(port))) as line:
            line.sendall(head.encode() + request.read())
            server.wait_until(lambda: len(waiting.waiting) > 0)
        server.wait_until(lambda: server.service.under_way == 1)
        assert all(w.done.cancelled() for w in waiting.waiting)
        go_on.set()
        thread.join(60)
        assert answers[0].status_code == 200


def test_what_takes_too_long_is_ended(models: Path, wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(models, replace(NOISE, timeout=0.3)) as server, held_up(monkeypatch):
        answers: list[httpx.Response] = []
        asked(server, wave, answers).join(60)
        assert answers[0].status_code == 503 and "took more than" in answers[0].json()["error"]["message"]


def test_the_end_waits_for_what_is_under_way(models: Path, wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(models) as server, held_up(monkeypatch) as (began, go_on):
        answers: list[httpx.Response] = []
        thread = asked(server, wave, answers)
        server.wait_until(began.is_set)
        server.server.should_exit = True
        with pytest.raises(httpx.TransportError):
            for _ in range(3000):  # until it no longer listens
                httpx.get(f"{server.url}/health")
        go_on.set()
        thread.join(60)
        assert answers[0].status_code == 200 and answers[0].json()["text"]


@pytest.mark.slow
def test_a_killed_worker_costs_no_request(models: Path, wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    with running(models, workers=1) as server:
        answers: list[httpx.Response] = []
        asked(server, wave, answers).join(60)
        worker = server.service.pool.workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        threads = [asked(server, wave, answers) for _ in range(3)]
        for thread in threads:
            thread.join(60)
        assert [a.status_code for a in answers] == [200] * 4
        assert len({a.json()["text"] for a in answers}) == 1
        assert server.service.pool.workers[0].pid != worker.pid


def test_a_domain_that_cannot_be_loaded_is_said(models: Path) -> None:
    from ilme.workflows.transcribe import Job

    async def main() -> None:
        service = Service({"gone": Job(model="/no/such/model")}, NOISE, 0)
        await service.start()
        await service._loading
        assert not service.ready and "/no/such/model" in service.error
        await service.close()

    batching.asyncio.run(main())
    with pytest.raises(BadInputError, match="at least one domain"):
        Service({})
