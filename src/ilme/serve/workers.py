"""Where tasks run: in a process of its own, or in a thread of this one. Both answer one task after another.

A process cannot hold up the service, and one that dies is replaced; a thread needs no second copy of the interpreter.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ilme.errors import IlmeError
from ilme.runtime.processes import Worker, interrupts_blocked
from ilme.serve.tasks import Failure, Shelf, Task

__all__ = ["ProcessWorker", "ThreadWorker", "WorkerDied", "Workers"]


class WorkerDied(IlmeError):  # noqa: N818 - it says what happened
    """The process ended before it had answered."""


class Workers(Protocol):
    """One worker; `ask` blocks, so it is called from a thread."""

    def ask(self, task: Task) -> Any:
        """What the task gives, or a `Failure`.

        Raises:
            WorkerDied: It will not answer any more.
        """
        ...

    def close(self) -> None: ...


class Work:
    """Runs tasks on the one shelf of a process; it is sent there without a shelf, and the first task makes it.

    Args:
        voice_activity: As the shelf's.
    """

    def __init__(self, voice_activity: bool) -> None:
        self.voice_activity = voice_activity
        self._shelf: Shelf | None = None

    def __call__(self, task: Task, progress: object) -> Any:
        if self._shelf is None:
            self._shelf = Shelf(self.voice_activity)
        return answer(task, self._shelf)


def answer(task: Task, shelf: Shelf) -> Any:
    """The result; an error becomes a `Failure`, so that no request can end a worker."""
    try:
        return task.run(shelf)
    except IlmeError as error:
        return Failure(str(error))
    except Exception as error:  # a fault of ours, or of a model's: the next request may do better
        return Failure(f"{type(error).__name__}: {error}")


class ProcessWorker:
    """A process with a shelf of its own.

    Args:
        voice_activity: As the shelf's.
    """

    def __init__(self, voice_activity: bool = True) -> None:
        with interrupts_blocked():
            self._worker = Worker()
        self._lock = threading.Lock()
        self._tell(lambda: self._worker.tell(pickle.dumps(Work(voice_activity))))

    @property
    def pid(self) -> int:
        return self._worker.process.pid or 0

    def ask(self, task: Task) -> Any:
        with self._lock:
            self._tell(lambda: self._worker.take(0, task, lambda _: None))
            return self._tell(self._worker.hear)[1].result

    def _tell(self, exchange: Callable[[], Any]) -> Any:
        try:
            return exchange()
        except (IlmeError, OSError, EOFError) as error:
            raise WorkerDied(str(error)) from error

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._worker.process.terminate()
            self._worker.process.join(5)
            self._worker.process.kill()
            self._worker.line.close()


class ThreadWorker:
    """A shelf in this process.

    Args:
        voice_activity: As the shelf's.
    """

    def __init__(self, voice_activity: bool = True) -> None:
        self._shelf = Shelf(voice_activity)
        self._lock = threading.Lock()

    def ask(self, task: Task) -> Any:
        with self._lock:
            return answer(task, self._shelf)

    def close(self) -> None:
        """Does nothing: there is no process to end."""
