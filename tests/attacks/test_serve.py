"""The attacks on the reading of audio, over HTTP: each is refused under the client's own name for it, with 400."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="it serves: pip install 'ilme[serve]'")

from ilme.serve.service import Service
from ilme.serve.tasks import Failure
from tests.attacks.cases import Case, attacks
from tests.attacks.test_audio import ACCEPTED, BAD_SAMPLES, CUTS, HEADERS, OTHERS
from tests.checkpoints import write_checkpoints
from tests.serve.conftest import NOISE, Running

PATH = "/v1/audio/transcriptions"
ODD_NAMES = [
    "",
    " ",
    "../../etc/passwd",
    "a\0b.wav",
    "x" * 5000 + ".wav",
    "\u202egpj.wav",
    "🐋.wav",
    "a\nb.wav",
    '";x="',
].copy()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from ilme.serve.run import jobs_of

    models = write_checkpoints(tmp_path_factory.mktemp("served"), ["rnnt"])
    found = Running(Service(jobs_of([models / "rnnt"]), NOISE, 0))
    yield found
    found.stop()


def send(server: Running, content: bytes, name: str, **fields: str) -> httpx.Response:
    return httpx.post(f"{server.url}{PATH}", files={"file": (name, content)}, data=fields, timeout=60)


@attacks([*HEADERS, *BAD_SAMPLES, *OTHERS, *CUTS])
def test_what_cannot_be_read_is_refused(case: Case, tmp_path: Path, server: Running) -> None:
    check_refused(case, tmp_path, server)


@attacks(BAD_SAMPLES)
def test_a_stream_is_refused_before_it_begins(case: Case, tmp_path: Path, server: Running) -> None:
    check_refused(case, tmp_path, server, stream="true")


def check_refused(case: Case, folder: Path, server: Running, **fields: str) -> None:
    path = case.make(folder)
    found = send(server, path.read_bytes(), path.name, **fields)
    too_long = "promised samples" in case.name and "lasts" in found.text  # a header may promise years
    assert found.status_code == (413 if too_long else 400), found.text
    error = found.json()["error"]
    assert error["param"] == "file" and path.name in error["message"]
    assert all(word in error["message"] for word in case.words), error["message"]
    assert "/proc" not in error["message"] and "\n" not in error["message"]
    assert httpx.get(f"{server.url}/ready").status_code == 200


@attacks(ACCEPTED)
def test_what_is_odd_but_sound_is_heard(case: Case, tmp_path: Path, server: Running) -> None:
    path = case.make(tmp_path)
    found = send(server, path.read_bytes(), path.name)
    assert found.status_code == 200, found.text


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_any_name_is_only_a_name(name: str, server: Running) -> None:
    found = send(server, b"no audio", name)
    assert found.status_code == 400 and len(found.content) < 2000
    assert "root:" not in found.text


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_disk_that_takes_no_more(size: int, server: Running) -> None:
    """The system fails the write, with uploads that fit into memory and with those that go to the disk as they come."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        found = send(server, bytes(size), "a.wav")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found.status_code == 507 and "no room" in found.json()["error"]["message"]
    assert send(server, bytes(size), "a.wav").status_code == 400


def test_a_failure_of_the_model(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ilme.serve.tasks import Recognise

    case = next(c for c in ACCEPTED if c.name == "full scale")
    content = case.make(tmp_path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Recognise, "run", lambda self, shelf: [Failure("it could not be recognised")])
        whole, events = (send(server, content, "a.wav", stream=s) for s in ("false", "true"))
    assert whole.status_code == 500 and whole.json()["error"]["type"] == "server_error"
    assert events.status_code == 200 and "could not be recognised" in events.text and "[DONE]" not in events.text
    assert send(server, content, "a.wav").status_code == 200
