"""Disks that are full or may not be written: one line that says what and where, nothing half-written, nothing lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ilme import cli
from ilme.runtime.locks import only_run
from tests.attacks.cases import HALF_WRITTEN, TRACEBACK, Run
from tests.attacks.jobs import JOBS, OTHERS, Job, Moment, changed, made, make_inputs, preload, run

ALL = JOBS | OTHERS
WRITE_NOTHING = {  # the other commands
    "doctor": "prints", "info": "prints", "perplexity": "prints", "phrases suggest": "prints", "study status": "prints",
    "serve": "a server: tests/attacks/test_serve.py; the domains it makes are those of adapt",
}  # fmt: skip
SAMPLE = {"adapt", "transcribe", "evaluate", "text prepare", "compare", "report"}  # in `make test`
FREED = ("adapt", "adapt again", "transcribe", "tune", "evaluate", "train lm", "text prepare", "lm replace",
         "data domains again", "study gather", "study unpack")  # fmt: skip
WORDS = {
    errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system", errno.EACCES: "Permission denied"
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preload()
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def commands(*names: str) -> pytest.MarkDecorator:
    rows = [pytest.param(ALL[n], id=n, marks=() if n in SAMPLE else pytest.mark.attacks) for n in names or ALL]
    return pytest.mark.parametrize("job", rows)


def needed(job: Job) -> None:
    if job.name in ("study", "data synth"):
        pytest.importorskip("espeakng_loader", reason="it speaks: pip install 'ilme[synth]'")
    if job.name == "study" or job.name.startswith("train"):
        pytest.importorskip("lightning_fabric", reason="it trains: pip install 'ilme[train]'")
    if job.name.startswith("data domains") and shutil.which("dpkg-deb") is None:
        pytest.skip("a package is made with dpkg-deb")
    if job.name == "export onnx":
        pytest.importorskip("onnx", reason="it writes ONNX: pip install 'ilme[onnx]'")


def test_every_command_is_a_job_or_writes_nothing() -> None:
    words = {" ".join(job.words(Path("in"), Path("out"))) for job in ALL.values()}
    written = {name for name in cli.COMMANDS if any(f"{line} ".startswith(f"{name} ") for line in words)}
    assert written.isdisjoint(WRITE_NOTHING) and written | set(WRITE_NOTHING) == set(cli.COMMANDS)


def failing(folder: Path, code: int, after: int = 0) -> Callable[[], None]:
    """Every change below the folder fails in the process that calls it, once `after` of them have been made."""

    def inside() -> None:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            path = changed(event, arguments)
            if path.startswith(str(folder)) and event not in ("os.remove", "os.rmdir"):  # full disks can be tidied up
                count += 1
                if count > after:
                    raise OSError(code, os.strerror(code), path)

        sys.addaudithook(hook)

    return inside


def no_large_files(limit: int) -> Callable[[], None]:
    """No file of the process may grow beyond so many bytes: the system fails the write, also in native code."""

    def inside() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return inside


def check_line(result: Run, job: Job, out: Path, *words: str) -> None:
    """One line that names the command and the place, and says what is wrong."""
    assert result.status == 1, result.err
    assert TRACEBACK not in result.err, result.err
    last = result.err.strip().splitlines()[-1]
    name = " ".join(w for w in job.words(out, out)[:2] if w.isalpha())
    assert last.startswith(f"ilme {name.split(' ')[0]}"), result.err
    assert str(out.parent) in last, last
    assert any(word in last for word in words), last


def check_left(out: Path) -> None:
    left = [p for p in out.parent.rglob("*") if p.suffix in HALF_WRITTEN]
    assert not left, left


@commands()
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_place_where_nothing_can_be_written(code: int, job: Job, inputs: Path, tmp_path: Path) -> None:
    needed(job)
    out = tmp_path / "disk" / "out"
    out.parent.mkdir()
    job.before(inputs, out)
    before = made(out)
    result = run(job.words(inputs, out), tmp_path, inside=failing(out.parent, code))
    check_line(result, job, out, WORDS[code])
    assert made(out) == before
    check_left(out)


@commands()
def test_a_place_below_a_file(job: Job, inputs: Path, tmp_path: Path) -> None:
    needed(job)
    out = tmp_path / "file" / "out"
    out.parent.write_text("kept")
    result = run(job.words(inputs, out), tmp_path)
    check_line(result, job, out, "a file has the name of a folder in this path")
    assert out.parent.read_text() == "kept" and [p.name for p in tmp_path.iterdir()] == ["file"]


@commands()
@pytest.mark.parametrize("limit", [0, 100])
def test_files_that_may_not_grow(limit: int, job: Job, inputs: Path, tmp_path: Path) -> None:
    needed(job)
    out = tmp_path / "disk" / "out"
    out.parent.mkdir()
    job.before(inputs, out)
    before = made(out)
    result = run(job.words(inputs, out), tmp_path, inside=no_large_files(limit))
    check_line(result, job, out, "File too large", "the disk is full")
    check_left(out)
    if before:
        assert made(out) == before


@pytest.mark.attacks
@pytest.mark.parametrize("after", range(1, 40, 3))
@pytest.mark.parametrize("name", FREED)
def test_a_disk_that_fills_up_and_is_freed(name: str, after: int, inputs: Path, tmp_path: Path) -> None:
    """Whatever was written before, the same command ends well once there is room."""
    job, out = ALL[name], tmp_path / "disk" / "out"
    out.parent.mkdir()
    job.before(inputs, out)
    before = made(out)
    result = run(job.words(inputs, out), tmp_path, inside=failing(out.parent, errno.ENOSPC, after))
    if result.status:
        check_line(result, job, out, "No space left", "the disk is full")
        check_left(out)
        assert not name.startswith("adapt") or made(out) == before
    assert run(job.words(inputs, out), tmp_path).status == 0
    other = tmp_path / "whole" / "out"
    other.parent.mkdir()
    job.before(inputs, other)
    assert run(job.words(inputs, other), tmp_path / "whole").status == 0
    assert made(out, job.ignored) == made(other, job.ignored)


@pytest.mark.parametrize("kill", ["in the middle", "two at once"])
def test_sorted_ngrams_leave_nothing_and_have_one_writer(kill: str, inputs: Path, tmp_path: Path) -> None:
    job, out = ALL["ngram train, safetensors"], tmp_path / "out"
    if kill == "in the middle":
        assert run(job.words(inputs, out), tmp_path, Moment(change=5)).status == -signal.SIGKILL
        assert [p for p in out.rglob("*") if p.suffix == ".partial"]
    else:
        out.mkdir()
        with only_run(out / "lm.safetensors"):
            result = run(job.words(inputs, out), tmp_path)
        assert result.status == 1 and "another run is writing" in result.err
    assert run(job.words(inputs, out), tmp_path).status == 0
    assert [p.name for p in out.iterdir()] == ["lm.safetensors"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of the given options, where that is allowed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("file systems cannot be mounted here")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


@pytest.mark.attacks
@pytest.mark.parametrize("name", [name for name in ALL if name != "study"])
@pytest.mark.parametrize("options", ["size=4k", "size=16k", "ro"])
def test_a_real_disk(options: str, name: str, inputs: Path, tmp_path: Path, disk: Callable[[str], Path]) -> None:
    job = ALL[name]
    needed(job)
    place = disk(options)
    result = run(job.words(inputs, place / "out"), tmp_path)
    if result.status or options == "ro":
        check_line(result, job, place / "out", "No space left", "the disk is full", "Read-only file system")
    assert not [p for p in place.rglob("*") if p.suffix in HALF_WRITTEN]
