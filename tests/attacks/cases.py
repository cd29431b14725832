"""The table of attacks: what each input is, and what must happen.

CASES = [Case("a folder", lambda folder: folder / "sub", AudioError, ("is a folder",)), ...]

@attacks(CASES)
def test_audio(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, load_audio)
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ilme import cli

TRACEBACK = "Traceback (most recent call last)"
HALF_WRITTEN = (".partial", ".part", ".tmp")
PATIENCE = 120  # seconds after which an attack counts as a hang


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        name: What the input is.
        make: Makes the input in an empty folder; gives what `ilme` or the function is called with.
        expect: The exit status, or the type of the error; 0 where the input must be taken.
        words: What the message holds: the file's name, and what is wrong or to be done.
        done: Files below the folder that must be there afterwards.
        full: Whether it runs in `make attacks` only.
    """

    name: str
    make: Callable[[Path], Any]
    expect: int | type[Exception] = 1
    words: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    full: bool = False


@dataclass(frozen=True)
class Run:
    """What a command did."""

    status: int
    out: str
    err: str


def attacks(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """One test for each case, under its name."""
    marks = [(pytest.mark.attacks,) if case.full else () for case in cases]
    rows = [pytest.param(case, id=case.name, marks=mark) for case, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", rows)


def run_here(words: Sequence[str]) -> Run:
    """`ilme` in this process. An exception that it lets out fails the test: a user would see a traceback."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), patience():
        status = cli.main(list(words))
    return Run(status, *(s.buffer.getvalue().decode("utf-8", "backslashreplace") for s in (out, err)))  # type: ignore[attr-defined]


def run_child(words: Sequence[str | bytes], environment: Mapping[str, str] | None = None, **options: Any) -> Run:
    """`ilme` in a process of its own; `options` are those of `subprocess.run`."""
    done = subprocess.run(
        [sys.executable, "-m", "ilme.cli", *words],
        capture_output=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}, **options,
    )  # fmt: skip
    return Run(done.returncode, *(s.decode("utf-8", "backslashreplace") for s in (done.stdout, done.stderr)))


def check_command(case: Case, folder: Path, run: Callable[[Sequence[str]], Run] = run_here) -> Run:
    """Runs `ilme` on the case's input in the folder, and checks all that the case says."""
    result = run(case.make(folder))
    told = result.out + result.err
    assert result.status == case.expect, f"ended with {result.status}, not {case.expect}:\n{told}"
    assert TRACEBACK not in told, told
    if case.expect:
        assert result.err.strip() or result.out.strip(), "it failed without a word"
    _check_words(case, told)
    check_folder(case, folder)
    return result


def check_call(case: Case, folder: Path, function: Callable[[Any], Any]) -> Any:
    """Calls a function with the case's input, and checks all that the case says; gives what it returned, or raised."""
    given = case.make(folder)
    with patience():
        if isinstance(case.expect, int):
            result = function(given)
        else:
            with pytest.raises(case.expect) as caught:
                function(given)
            _check_words(case, str(caught.value))
            result = caught.value
    check_folder(case, folder)
    return result


def check_folder(case: Case, folder: Path) -> None:
    """Nothing half-written is left, and what had to be done is there."""
    names = [Path(parent) / name for parent, _, files in os.walk(folder) for name in files]
    assert not [name for name in names if name.suffix in HALF_WRITTEN], "something half-written is left"
    for name in case.done:
        assert (folder / name).is_file(), f"{name} is missing"


@contextmanager
def patience(seconds: int = PATIENCE) -> Iterator[None]:
    """What takes longer fails as a hang."""

    def hang(*_: object) -> NoReturn:
        pytest.fail(f"it hangs: nothing after {seconds} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _check_words(case: Case, told: str) -> None:
    for word in case.words:
        assert word in told, f"{word!r} is not in: {told}"
