"""New domains from text over HTTP: made in a child, served when they are whole, and nothing left of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ilme.serve.adapting import made_before
from ilme.serve.run import jobs_of
from tests.serve.conftest import KEY, NOISE, Running, running

PATH = "/v1/ilme/adaptations"
TEXT = "the whale swam\nthe captain saw the sea\n" * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def adapting(models: Path, folder: Path) -> Iterator[Running]:
    with running(models, replace(NOISE, text_mb=0.01, domains=3), key=KEY, adapt=folder) as found:
        yield found


def ask(live: Running, method: str, path: str = PATH, **request: Any) -> httpx.Response:
    return httpx.request(method, live.url + path, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, **request)


def begin(live: Running, name: str = "whales", text: str = TEXT) -> dict[str, Any]:
    answer = ask(live, "POST", json={"name": name, "text": text, "model": "sea"})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ended(live: Running, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(ask(live, "GET", f"{PATH}/{run['id']}").json())
        return found["state"] != "running"

    live.wait_until(is_over, 300)
    return found


def children() -> list[int]:
    """Processes of ours that adapt."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and b"adapting_child" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_domain_is_made_of_text_and_served(adapting: Running, folder: Path, wave: Path) -> None:
    run = begin(adapting)
    assert run["state"] == "running" and run["base"] == "sea"
    second = ask(adapting, "POST", json={"name": "others", "text": TEXT, "model": ""})
    assert second.status_code == 409 and "another" in second.json()["error"]["message"]
    done = ended(adapting, run)
    assert done["state"] == "done" and done["lines"] and not done["error"]
    assert not any(str(folder) in line for line in done["lines"]), "no path of the service's"
    assert "whales" in [m["id"] for m in ask(adapting, "GET", "/v1/models").json()["data"]]
    assert ask(adapting, "GET", "/ready").status_code == 200
    with wave.open("rb") as file:
        answer = ask(adapting, "POST", "/v1/audio/transcriptions", files={"file": file}, data={"model": "whales"})
    assert answer.json()["text"]
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["whales"], "nothing else is left"
    assert ask(adapting, "POST", json={"name": "whales", "text": TEXT, "model": ""}).status_code == 409
    assert list(made_before(folder, {})) == ["whales"] and not made_before(folder, {"whales": None})  # type: ignore[dict-item]
    assert ask(adapting, "DELETE", f"{PATH}/{run['id']}").json()["state"] == "done"


def test_one_that_is_cancelled_leaves_nothing(adapting: Running, folder: Path) -> None:
    before = sorted(folder.iterdir())
    run = begin(adapting, "cancelled")
    assert ask(adapting, "DELETE", f"{PATH}/{run['id']}").json()["state"] == "cancelled"
    assert sorted(folder.iterdir()) == before and not children()
    assert "cancelled" not in adapting.service.jobs


def test_a_child_that_is_killed_leaves_nothing(adapting: Running, folder: Path) -> None:
    before = sorted(folder.iterdir())
    run = begin(adapting, "killed")
    adapting.wait_until(lambda: bool(children()))
    os.kill(children()[0], signal.SIGKILL)
    done = ended(adapting, run)
    assert done["state"] == "failed" and "SIGKILL" in done["error"]
    assert sorted(folder.iterdir()) == before
    assert httpx.get(f"{adapting.url}/health").status_code == 200


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "no JSON": (415, {"content": "name=x", "headers": {"Content-Type": "text/plain"}}),
    "broken": (400, {"content": "{", "headers": {"Content-Type": "application/json"}}),
    "deep": (400, {"content": "[" * 9000, "headers": {"Content-Type": "application/json"}}),
    "a list": (400, {"json": []}),
    "too much": (413, {"json": {"name": "much", "text": "word " * 3000}}),
    "no text": (400, {"json": {"name": "empty", "text": " "}}),
    "text that is a number": (400, {"json": {"name": "x", "text": 5}}),
    "a path": (400, {"json": {"name": "../x", "text": TEXT}}),
    "hidden": (400, {"json": {"name": ".x", "text": TEXT}}),
    "no name": (400, {"json": {"text": TEXT}}),
    "a name that is served": (409, {"json": {"name": "sea", "text": TEXT}}),
    "an unknown base": (404, {"json": {"name": "x", "text": TEXT, "model": "nobody"}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_is_refused(name: str, adapting: Running) -> None:
    status, request = REFUSED[name]
    headers = {"Authorization": f"Bearer {KEY}", **request.pop("headers", {})}
    answer = httpx.post(adapting.url + PATH, headers=headers, timeout=60, **request)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_the_key_is_asked_for(adapting: Running) -> None:
    assert httpx.get(adapting.url + PATH).status_code == 401
    assert httpx.post(adapting.url + PATH, json={"name": "x", "text": TEXT}).status_code == 401


def test_unknown_runs_are_not_found(adapting: Running) -> None:
    assert ask(adapting, "GET", f"{PATH}/adapt_0").status_code == 404


def test_it_is_off_unless_it_is_switched_on(models: Path) -> None:
    with running(models) as live:
        assert httpx.get(live.url + PATH).json()["enabled"] is False
        assert httpx.post(live.url + PATH, json={"name": "x", "text": TEXT}).status_code == 403


def test_limits_of_time_and_number_hold(models: Path, tmp_path: Path) -> None:
    with running(models, replace(NOISE, adapt_timeout=0.1, domains=2), adapt=tmp_path) as live:
        done = ended(live, begin(live))
        assert done["state"] == "failed" and "send less text" in done["error"]
        live.service.jobs["second"] = live.service.jobs["sea"]
        answer = ask(live, "POST", json={"name": "third", "text": TEXT})
        assert answer.status_code == 409 and "no more are taken" in answer.json()["error"]["message"]


def test_a_service_that_ends_leaves_nothing_and_clears_up(models: Path, tmp_path: Path) -> None:
    left = tmp_path / ".adapting-of-one-that-was-killed"
    left.mkdir()
    with running(models, adapt=tmp_path) as live:
        assert not left.exists()
        begin(live)
    assert not list(tmp_path.iterdir()) and not children()


def test_a_damaged_folder_is_passed_over(models: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "domain.json").write_text("{")
    (tmp_path / "sea").symlink_to(models / "sea")
    assert list(made_before(tmp_path, {})) == ["sea"]
    assert not made_before(tmp_path / "none", jobs_of([models / "sea"]))


def test_a_name_that_leads_nowhere_is_taken(models: Path, tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("nowhere")
    with running(models, adapt=tmp_path) as live:
        answer = ask(live, "POST", json={"name": "nowhere", "text": TEXT})
        assert answer.status_code == 409 and "already" in answer.json()["error"]["message"]


def test_a_folder_that_has_gone_is_told_without_its_path(models: Path, tmp_path: Path) -> None:
    with running(models, adapt=tmp_path / "made") as live:
        (tmp_path / "made").rmdir()
        done = ended(live, begin(live))
    assert done["error"] == "the folder of domains cannot be written: No such file or directory"


def test_a_child_whose_service_has_died_does_nothing() -> None:
    command = [sys.executable, "-m", "ilme.serve.adapting_child", "1"]  # another parent
    done = subprocess.run(command, input=b"{}", capture_output=True, timeout=120, check=False)
    assert done.returncode == 1 and not done.stdout and not done.stderr
