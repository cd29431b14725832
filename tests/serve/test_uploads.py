"""Uploads that are too large, too slow, cut off or no uploads at all: a clear status, and nothing is left."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import NOISE, Running, running

PATH = "/v1/audio/transcriptions"
LIMITS = replace(NOISE, upload_mb=0.2, longest=10.0, upload_timeout=1.0)
HEAD = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"


@pytest.fixture(scope="module")
def strict(models: Path) -> Iterator[Running]:
    with running(models, LIMITS) as found:
        yield found


def send(server: Running, content: bytes, name: str = "a.wav") -> httpx.Response:
    return httpx.post(f"{server.url}{PATH}", files={"file": (name, content)}, data={"model": "sea"}, timeout=60)


def raw(server: Running, *parts: bytes) -> bytes:
    """What comes back for bytes that no client would send."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        for part in parts:
            line.sendall(part)
        answer = b""
        while b"\r\n\r\n" not in answer and (more := line.recv(4096)):
            answer += more
        return answer


def still_works(server: Running, wave: Path) -> bool:
    found = send(server, wave.read_bytes())
    return found.status_code == 200 and bool(found.json()["text"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "zero bytes"),
        (b"no audio at all", "cannot be read as audio"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "cannot be read as audio"),
        (b"fLaC" + bytes(100), "a.wav"),
        (b"OggS" + bytes(100), "a.wav"),
    ],
)
def test_broken_audio_is_named(content: bytes, says: str, strict: Running) -> None:
    found = send(strict, content)
    assert found.status_code == 400
    error = found.json()["error"]
    assert says in error["message"] and "/proc" not in error["message"] and error["param"] == "file"


def test_audio_that_was_cut_off_is_refused(strict: Running, wave: Path) -> None:
    found = send(strict, wave.read_bytes()[:-2000], "call.wav")
    assert found.status_code == 400 and "call.wav is cut off" in found.json()["error"]["message"]


def test_large_uploads_are_refused(strict: Running, wave: Path) -> None:
    assert send(strict, bytes(300_000)).status_code == 413

    def chunks() -> Iterator[bytes]:  # without a length
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(30):
            yield bytes(10_000)

    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert httpx.post(f"{strict.url}{PATH}", content=chunks(), headers=kind, timeout=60).status_code == 413
    assert still_works(strict, wave)


def test_long_recordings_are_refused(strict: Running, tmp_path: Path) -> None:
    import numpy as np
    import soundfile

    soundfile.write(tmp_path / "long.flac", np.zeros(16_000 * 11, np.float32), 16_000)
    found = send(strict, (tmp_path / "long.flac").read_bytes(), "long.flac")
    assert found.status_code == 413 and "long.flac lasts 11 s" in found.json()["error"]["message"]


def test_what_is_no_form_is_refused(strict: Running) -> None:
    url = f"{strict.url}{PATH}"
    assert httpx.post(url, json={"model": "sea"}).status_code == 415
    assert httpx.post(url, data={"model": "sea"}).status_code == 415
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    for body in (b"", b"--b--\r\n", b"garbage", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"):
        assert httpx.post(url, content=body, headers=kind).status_code == 400, body
    assert httpx.get(url).status_code == 405
    assert httpx.post(f"{strict.url}/v1/audio/nothing").status_code == 404


def test_a_slow_client_is_told(strict: Running, wave: Path) -> None:
    begun = f"{HEAD}Content-Length: 1000\r\n\r\n--b\r\n".encode()
    assert b" 408 " in raw(strict, begun).split(b"\r\n")[0]
    assert still_works(strict, wave)


@pytest.mark.parametrize("length", ["-5", "many", "5, 6"])
def test_a_length_that_is_none_is_refused(length: str, strict: Running, wave: Path) -> None:
    assert b" 400 " in raw(strict, f"{HEAD}Content-Length: {length}\r\n\r\n".encode()).split(b"\r\n")[0]
    assert still_works(strict, wave)


def test_a_body_longer_than_it_says_is_no_second_request(strict: Running, wave: Path) -> None:
    said = raw(strict, f"{HEAD}Content-Length: 5\r\n\r\n--b--and then some more\r\n\r\n".encode())
    assert b" 400 " in said.split(b"\r\n")[0]
    assert still_works(strict, wave)


def test_huge_headers_are_refused(strict: Running, wave: Path) -> None:
    begun = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000
    assert b" 400 " in raw(strict, begun).split(b"\r\n")[0]
    assert still_works(strict, wave)


def test_a_full_disk_is_said(strict: Running, wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile.SpooledTemporaryFile, "rollover", full)
        found = send(strict, wave.read_bytes())
    assert found.status_code == 507 and "no room" in found.json()["error"]["message"]
    assert still_works(strict, wave)


def test_no_file_is_left_and_none_has_a_name(
    strict: Running, wave: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[tuple[list[Path], int]] = []
    opened = type(strict.service).open

    async def look(self: object, path: Path, *rest: object) -> object:
        seen.append((list(tmp_path.iterdir()), path.stat().st_size))
        return await opened(self, path, *rest)

    monkeypatch.setattr(type(strict.service), "open", look)
    assert still_works(strict, wave)
    assert seen == [([], wave.stat().st_size)] and not list(tmp_path.iterdir())
    assert send(strict, b"no audio").status_code == 400
    assert not list(tmp_path.iterdir())
