"""One run at a time for one output: the second is refused with a line that says why."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ilme.errors import BadInputError
from ilme.runtime.files import remove_partials

__all__ = ["only_run", "tidy"]


@contextmanager
def only_run(output: Path, wait: bool = False, role: str = "") -> Iterator[None]:
    """Holds `output`, which is written or replaced, for this process; an error if another holds it.

    What a killed run left beside `output` is removed. The lock is a hidden file beside it, `.NAME.lock`, that goes with
    the run. The system lets go of it when the process ends, however it ends. Where a file system knows no locks,
    nothing is held.

    Args:
        output: A folder or a file.
        wait: Until the other has let go, instead of the error; for what takes a moment.
        role: Which part of the work is held, where one process holds the same output for several; goes into the name
            of the hidden file.
    """
    output = output.resolve()
    file = _hidden(output, role)
    held = _take(file, output, wait)
    if held is None:
        yield
        return
    try:
        remove_partials(output)
        yield
    finally:
        with _undisturbed():  # a signal here would leave the file
            with suppress(OSError):
                file.unlink()
            os.close(held)


def tidy(output: Path, role: str = "") -> None:
    """Removes the hidden file of a run that was killed when its work was done; one that is held stays."""
    if _hidden(output.resolve(), role).exists():
        with suppress(BadInputError), only_run(output, role=role):
            pass


def _hidden(output: Path, role: str) -> Path:
    return output.parent / f".{output.name}{role and f'.{role}'}.lock"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that end a run come after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(file: Path, output: Path, wait: bool) -> int | None:
    """The locked file, open; None where locks are not known."""
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # a place that cannot be written: the writer says so, better
            return None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(number)
            raise BadInputError(
                f"another run is writing {output}; wait until it has ended, or choose another place with --out"
            ) from None
        except OSError:
            os.close(number)
            return None
        with suppress(FileNotFoundError):
            if os.fstat(number).st_ino == file.stat().st_ino:
                return number
        os.close(number)  # a run that ended just now took the file away: once more
