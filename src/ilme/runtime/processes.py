"""Long pieces of work in several processes, each of which says how far it is.

For many short ones, with bounded memory, there is `ilme.data.processes`.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from ilme.errors import IlmeError

__all__ = ["in_processes"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # (done, of how many)


def in_processes(
    work: Callable[[Item, Progress | None], Result],
    items: Sequence[Item],
    count: int,
    begin: Callable[[Item], Progress | None],
) -> list[Result]:
    """work(item, progress) for each item, the results in the order of the items.

    A process that is free takes the next item, so items that take long should come first. With one process, or one
    item, everything happens in this process. When anything fails, in a process or here, all of them are ended.

    Args:
        work: Travels once to each process and is kept there; what it keeps of one item it has for the next.
        items: What is to be done.
        count: Most processes.
        begin: Called here when an item is begun; what it returns is called here with the item's progress.
    """
    if min(count, len(items)) < 2:
        return [work(item, begin(item)) for item in items]
    waiting, results = deque(enumerate(items)), dict[int, Result]()
    busy: dict[Connection, _Worker[Item, Result]] = {}
    workers: list[_Worker[Item, Result]] = []
    try:
        for _ in range(min(count, len(items))):
            worker = _Worker[Item, Result]()
            workers.append(worker)
            worker.tell(work)
            worker.take(*waiting.popleft(), begin)
            busy[worker.line] = worker
        while busy:
            for line in wait(list(busy)):
                worker = busy[line]  # type: ignore[index]  # nothing but connections is waited for
                done = worker.hear()
                if done is None:
                    continue
                results[worker.number] = done.result
                if waiting:
                    worker.take(*waiting.popleft(), begin)
                else:
                    del busy[worker.line]
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.line.close()
    return [results[number] for number in range(len(items))]


@dataclass(frozen=True)
class _Done(Generic[Result]):
    """An item's result, as it travels."""

    result: Result


class _Worker(Generic[Item, Result]):
    """A process as its parent sees it: it is told the work, then items, and answers with progress, result or error."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, far_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(far_end,), daemon=True)
        self.process.start()
        far_end.close()
        self.number = -1  # of the item it has
        self.progress: Progress | None = None

    def take(self, number: int, item: Item, begin: Callable[[Item], Progress | None]) -> None:
        self.number, self.progress = number, begin(item)
        self.tell(item)

    def tell(self, thing: Any) -> None:
        try:
            self.line.send(thing)
        except ConnectionError as error:
            raise self._death() from error

    def hear(self) -> _Done[Result] | None:
        """The result, if that is what it says; its error is raised here, its progress is passed on."""
        try:
            said = self.line.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        if isinstance(said, Exception):
            raise said
        if isinstance(said, _Done):
            return said
        if self.progress is not None:
            self.progress(*said)
        return None

    def _death(self) -> IlmeError:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return IlmeError(f"a worker process {how} before its work was done; fewer processes need less memory")


def _serve(parent: Connection) -> None:
    """The life of a process: it is told the work, then one item after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends this one
    with suppress(EOFError, ConnectionError):  # the parent is gone
        work = parent.recv()
        while True:
            parent.send(_answer(work, parent.recv(), parent))


def _answer(work: Callable[[Any, Progress], Any], item: Any, parent: Connection) -> Any:
    try:
        return _Done(work(item, lambda done, total: parent.send((done, total))))
    except Exception as error:
        answer = _portable(error)
        answer.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return answer


def _portable(error: Exception) -> Exception:
    """The error itself, or one that says the same if it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return IlmeError(str(error)) if isinstance(error, IlmeError) else RuntimeError(repr(error))
