"""Stages that need not wait for each other at the same time, each in a process of its own.

A small network keeps a large GPU waiting for the host, and speech is made on cores that a training does not use.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from ilme.errors import IlmeError
from ilme.study.runner import Study

__all__ = ["run_at_once", "started"]

_LOOK = 0.1  # seconds between two looks at the processes
_PR_SET_PDEATHSIG = 1


def started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """`ilme` with these words in a process that ends when this one does."""

    def with_its_parent() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen([sys.executable, "-m", "ilme.cli", *words], preexec_fn=with_its_parent)


def run_at_once(
    study: Study, names: Sequence[str], start: Callable[[str], subprocess.Popen[bytes]], count: int
) -> list[str]:
    """Runs the stages that are not done, each as soon as all it needs is; the names of those that ran.

    A stage that fails lets those that run beside it come to their end; nothing new is begun.

    Args:
        study: The study.
        names: Its stages that are wanted, with those they need.
        start: Starts the process that makes one stage.
        count: Most processes at a time.
    """
    waiting = [name for name in names if not study.done(name)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    ran: list[str] = []
    failed: list[str] = []
    try:
        while running or waiting:
            ready = [] if failed else [n for n in waiting if all(map(study.done, study.stages[n].needs))]
            for name in ready[: count - len(running)]:
                waiting.remove(name)
                running[name] = start(name)
            if not running:
                break
            for name in [name for name, process in running.items() if process.poll() is not None]:
                ended = running.pop(name).returncode
                (ran if study.done(name) else failed).append(name)
                if ended and name not in failed:
                    failed.append(name)
            time.sleep(_LOOK if running else 0)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    if failed:
        raise IlmeError(f"{', '.join(failed)} did not come to an end: what it said stands above; start again to go on")
    return ran
