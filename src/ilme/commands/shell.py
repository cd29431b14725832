"""What a command owes the shell that runs it: streams that take any text, and an end when a signal asks for it."""

from __future__ import annotations

import io
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["discard_output", "end_on_signals", "open_streams", "reader_left"]

TIMES_ASKED, PATIENCE = 3, 1.0  # seconds that a worker has to end before it is asked again


def open_streams() -> None:
    """Makes printing safe: what the encoding lacks is escaped, and what goes to a closed stream is dropped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays open
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def reader_left() -> bool:
    """Whether nobody reads stdout or stderr any more; what is still buffered for it is then discarded."""
    left = False
    for stream in (sys.stdout, sys.stderr):
        try:
            pipe = stream.fileno()
        except (AttributeError, OSError):  # a stream without a file, such as a test's
            continue
        watch = select.poll()
        watch.register(pipe, 0)
        if any(event & select.POLLERR for _, event in watch.poll(0)):
            discard_output(pipe)
            left = True
    return left


def discard_output(file: int) -> None:
    """Sends what is written to a file descriptor, and what is buffered for it, to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file)
    os.close(nowhere)


@contextmanager
def end_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the worker processes and then this one, as a SystemExit: files are closed on the way.

    The status is 128 + the signal's number, as shells write it. A second signal ends the process at once. A signal
    that is ignored (`nohup`) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    owner, asked = os.getpid(), list[int]()

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a forked worker
            os.kill(os.getpid(), number)
        asked.append(number)
        _end_workers()
        raise SystemExit(128 + number)

    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    except BaseException:
        if not asked:
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if asked:  # whatever else failed because the workers ended
        raise SystemExit(128 + asked[0])


def _end_workers() -> None:
    """Asks every worker to end, again if need be: Python forgets a signal that comes before a fork is complete."""
    for _ in range(TIMES_ASKED):
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(PATIENCE)
