"""Connections that are held open, by the hundred, or that say one thing and do another: the others are answered."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ilme.serve.connections import allow_files
from tests.serve.conftest import NOISE, Running, running

PATH = "/v1/audio/transcriptions"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
CONNECTIONS = 1000


@pytest.fixture(scope="module")
def impatient(models: Path) -> Iterator[Running]:
    with running(models, replace(NOISE, head_timeout=0.5, upload_timeout=30.0)) as found:
        yield found


def line_to(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def all_of(line: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    answer = b""
    try:
        while more := line.recv(65536):
            answer += more
    except ConnectionResetError:
        pass  # it closed while bytes of ours were on their way
    return answer


def works(server: Running, wave: Path) -> bool:
    found = httpx.post(f"{server.url}{PATH}", files={"file": wave.read_bytes()}, timeout=60)
    return found.status_code == 200 and bool(found.json()["text"])


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_slow_headers_are_told_and_closed(begun: bytes, impatient: Running, wave: Path) -> None:
    with line_to(impatient) as line:
        line.sendall(begun)
        head, _, body = all_of(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and "headers" in json.loads(body)["error"]["message"]
    assert works(impatient, wave)


def test_bytes_now_and_then_do_not_help(impatient: Running) -> None:
    """Each byte comes well before the end of the patience, and the connection ends all the same."""
    with line_to(impatient) as line:
        line.settimeout(0.05)
        answer = b""
        for _ in range(600):
            try:
                line.sendall(b"a")
                answer = line.recv(4096)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it is still open")
    assert not answer or b" 408 " in answer


def test_a_connection_that_says_nothing_is_closed(impatient: Running) -> None:
    with line_to(impatient) as line:
        assert all_of(line) == b""


def test_a_second_slow_request_is_told_too(impatient: Running) -> None:
    with line_to(impatient) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HT")
        answer = all_of(line)
    assert answer.count(b"HTTP/1.1 ") == 2 and b" 200 " in answer and b" 408 " in answer


def test_a_body_that_goes_on_after_the_answer_is_not_waited_for(impatient: Running) -> None:
    with line_to(impatient) as line:
        line.sendall(b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nand it goes on")
        assert b" 405 " in all_of(line).split(b"\r\n")[0]


def test_a_request_under_way_has_its_own_time(impatient: Running, wave: Path) -> None:
    """The patience with headers is no limit of uploads."""
    request = httpx.Request("POST", f"{impatient.url}{PATH}", files={"file": wave.read_bytes()})
    head = f"POST {PATH} HTTP/1.1\r\nConnection: close\r\n"
    head += "".join(f"{k}: {v}\r\n" for k, v in request.headers.items()) + "\r\n"
    body = request.read()
    with line_to(impatient) as line:
        line.sendall(head.encode() + body[:1000])
        with line_to(impatient) as other:
            all_of(other)  # closed after the patience: so long has the upload waited
        line.sendall(body[1000:])
        assert b" 200 " in all_of(line).split(b"\r\n")[0]


def test_a_body_shorter_than_it_says(impatient: Running, wave: Path) -> None:
    """The client closes: nobody is left to be answered, and nothing is held for it."""
    for _ in range(5):
        with line_to(impatient) as line:
            line.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n--b\r\n".encode())
            impatient.wait_until(lambda: impatient.service.under_way > 0)
        impatient.wait_until(lambda: impatient.service.under_way == 0)
    assert works(impatient, wave)


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",  # the beginning of TLS
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 40_000,
    ],
)
def test_what_is_no_http_is_refused(head: bytes, impatient: Running, wave: Path) -> None:
    with line_to(impatient) as line:
        line.sendall(head)
        answer = all_of(line)
    assert not answer or answer.split(b" ")[1] in (b"400", b"408", b"501")
    assert works(impatient, wave)


def test_a_client_that_leaves_a_stream_is_forgotten(impatient: Running, long_wave: Path) -> None:
    request = httpx.Request(
        "POST", f"{impatient.url}{PATH}", files={"file": long_wave.read_bytes()}, data={"stream": "true"}
    )
    head = f"POST {PATH} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in request.headers.items()) + "\r\n"
    with line_to(impatient) as line:
        line.sendall(head.encode() + request.read())
        assert line.recv(10).startswith(b"HTTP/1.1 ")
    impatient.wait_until(lambda: impatient.service.under_way == 0)
    assert not [w for w in impatient.service.pool.batcher.waiting if not w.done.done()]
    assert works(impatient, long_wave)


@pytest.mark.slow
def test_a_thousand_connections(models: Path, wave: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CONNECTIONS + 500:
        pytest.skip(f"the system allows {hard} open files, and both ends of {CONNECTIONS} connections are here")
    allow_files(2 * CONNECTIONS + 500)
    try:
        with running(models) as server, ExitStack() as held:
            lines = [held.enter_context(line_to(server)) for _ in range(CONNECTIONS)]
            server.wait_until(lambda: len(server.server.server_state.connections) >= CONNECTIONS)
            assert works(server, wave)
            for line in lines[::100]:
                line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert b" 200 " in all_of(line).split(b"\r\n")[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_connections_than_are_taken(models: Path, wave: Path) -> None:
    with running(models, limit_concurrency=6) as server:
        with ExitStack() as held:
            for _ in range(8):
                held.enter_context(line_to(server))
            server.wait_until(lambda: len(server.server.server_state.connections) >= 8)
            assert httpx.get(f"{server.url}/health").status_code == 503
        server.wait_until(lambda: not server.server.server_state.connections)
        assert works(server, wave)


def test_open_files_are_raised_and_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        allow_files(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400
        allow_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
