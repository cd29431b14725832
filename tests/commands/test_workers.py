"""A command that starts itself again under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ilme.commands import workers
from ilme.commands.workers import share_among
from ilme.errors import BadInputError, UsageError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], environment: dict[str, str]) -> int:
        commands.append(command)
        return next((int(word) for word in command if word.lstrip("-").isdigit()), 0)

    monkeypatch.setattr(workers, "_run", run)
    monkeypatch.delenv("RANK", raising=False)
    return commands


def test_starts_itself_under_torchrun(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ilme", "tune", "a", "--workers=3"])
    assert share_among(3) == 0
    (command,) = started
    assert command[:3] == [sys.executable, "-m", "ilme.commands.workers"]
    assert "--nproc-per-node=3" in command and command[-5:] == ["-m", "ilme.cli", "tune", "a", "--workers=3"]


def test_does_the_work_itself_when_alone_or_already_a_worker(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_among(1) is None
    monkeypatch.setenv("RANK", "0")
    assert share_among(3) is None
    assert not started


def test_a_worker_that_said_why_it_failed_is_not_talked_over(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for status in (1, 2):
        monkeypatch.setattr(sys, "argv", ["ilme", "tune", str(status)])
        assert share_among(2) == status


@pytest.mark.parametrize(
    ("status", "said"), [(3, "ended with status 3"), (137, "ended by SIGKILL"), (-9, "ended by SIGKILL")]
)
def test_a_worker_that_died_is_told(
    status: int, said: str, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ilme", "tune", str(status)])
    with pytest.raises(BadInputError, match=f"{said}; what was decoded is kept, run the command again"):
        share_among(2)


def test_no_workers_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        share_among(0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_command_ends_its_launcher(stop: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if process not in launched:
            launched.append(process)
            raise stop
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(stop):
        workers._run([sys.executable, "-c", f"import time; time.sleep({60})"], dict(os.environ))
    (process,) = launched
    assert process.poll() == -15


@pytest.mark.slow
def test_two_workers_share_a_command(tmp_path: Path) -> None:
    """They fail as the command would alone, each with its line, and torchrun adds nothing."""
    nothing = str(tmp_path / "none")
    command = [sys.executable, "-m", "ilme.cli", "evaluate", nothing, nothing, str(tmp_path), "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    told = done.stderr.splitlines()
    assert done.returncode == 1
    assert told and all(line.startswith("ilme evaluate: ") for line in told)
