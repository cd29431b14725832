"""The one pool of local processes: many items, one piece of work, results in the order of the items.

Processes start afresh (spawn), are sent the work once and then items as they become free. They end when the pool ends
and when their parent dies, however it dies. What a program runs on a pool must be importable: a function of a module
or an instance of a class of one.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from ilme.errors import IlmeError

__all__ = ["Worker", "cores", "in_processes", "interrupts_blocked", "ordered_map", "standing_pool"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # (done, of how many)
Begin = Callable[[Item], Progress | None]

_AHEAD = 3  # items of each process whose results wait for an earlier one
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Result]:
    """function(item) for each item, in order; items are taken only as fast as results are, so memory is bounded.

    For many short items: each process has one in hand and one in reserve. With one process, or one item, everything
    happens in this process. Take all results in one thread.

    Args:
        function: Sent once to each process, so it may be large.
        items: What is to be done.
        count: Most processes.
    """
    return _results(_Silent(function), items, count, _unwatched, ahead=_AHEAD * count, reserve=1)


@contextmanager
def standing_pool(
    function: Callable[[Item], Result], count: int
) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """`ordered_map` over processes that stay: what the function keeps for one call it has for the next.

    Args:
        function: Sent once to each process, so it may be large.
        count: How many processes, at least one.

    Yields:
        Items to function(item) for each, in order, as `ordered_map`; exhaust one call before the next.
    """
    with _started(count, _Silent(function)) as workers:
        yield lambda items: _shared(workers, enumerate(items), _unwatched, _AHEAD * count, reserve=1)


def in_processes(
    work: Callable[[Item, Progress | None], Result],
    items: Sequence[Item],
    count: int,
    begin: Begin[Item],
) -> list[Result]:
    """work(item, progress) for each item, the results in the order of the items.

    For long pieces of work: a process that is free takes the next item, so items that take long should come first.
    With one process, or one item, everything happens in this process. When anything fails, in a process or here, all
    of them are ended.

    Args:
        work: Sent once to each process and kept there; what it keeps of one item it has for the next.
        items: What is to be done.
        count: Most processes.
        begin: Called here when an item is begun; what it returns is called here with the item's progress.
    """
    return list(_results(work, items, count, begin, ahead=len(items), reserve=0))


def _results(
    work: Callable[[Item, Progress | None], Result],
    items: Iterable[Item],
    count: int,
    begin: Begin[Item],
    ahead: int,
    reserve: int,
) -> Iterator[Result]:
    """The results in order. At most `ahead` items are taken before the next result is given out."""
    left = iter(items)
    first = list(itertools.islice(left, count))
    if len(first) < 2:
        for item in itertools.chain(first, left):
            yield work(item, begin(item))
        return
    with _started(len(first), work) as workers:
        yield from _shared(workers, enumerate(itertools.chain(first, left)), begin, ahead, reserve)


def _shared(
    workers: Sequence[Worker], numbered: Iterator[tuple[int, Item]], begin: Begin[Item], ahead: int, reserve: int
) -> Iterator[Any]:
    """The results of numbered items in order, each worker with one in hand and so many in reserve."""
    results: dict[int, Any] = {}
    taken = given = 0
    while True:
        while taken - given < ahead:
            worker = min(workers, key=lambda w: len(w.held))
            entry = next(numbered, None) if len(worker.held) <= reserve else None
            if entry is None:
                break
            worker.take(*entry, begin)
            taken += 1
        if taken == given:
            return
        busy: dict[Any, Worker] = {worker.line: worker for worker in workers if worker.held}
        for line in wait(list(busy), timeout=0 if given in results else None):
            number, done = busy[line].hear()
            if done is not None:
                results[number] = done.result
        if given in results:
            yield results.pop(given)
            given += 1


def _unwatched(item: Any) -> None:
    """Begins an item whose progress nobody asks for."""


@contextmanager
def _started(count: int, work: Any) -> Iterator[list[Worker]]:
    """Processes that have been sent the work; they are ended at the end, whatever it is."""
    workers: list[Worker] = []
    try:
        with interrupts_blocked():
            workers.extend(Worker() for _ in range(count))
        message = pickle.dumps(work)
        for worker in workers:  # when all are starting: the message of a large work waits for its process
            worker.tell(message)
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.line.close()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes that start in here do not see Ctrl-C, which reaches them all, not even while they import modules."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else the first start does it, and unblocks signals afterwards
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _Silent(Generic[Item, Result]):
    """A function of an item as work that says nothing of its progress."""

    function: Callable[[Item], Result]

    def __call__(self, item: Item, progress: Progress | None) -> Result:
        return self.function(item)


@dataclass(frozen=True)
class _Done:
    """An item's result, as it travels."""

    result: Any


class Worker:
    """A process as its parent sees it: it is told the work, then items, and answers with progress, result or error."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, far_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(far_end,), daemon=True)
        self.process.start()
        far_end.close()
        self.held = deque[tuple[int, Progress | None]]()  # numbers of its items, the one in hand first

    def take(self, number: int, item: Item, begin: Begin[Item]) -> None:
        progress = begin(item)
        self.tell(pickle.dumps((item, progress is not None)))
        self.held.append((number, progress))

    def tell(self, message: bytes) -> None:
        try:
            self.line.send_bytes(message)
        except ConnectionError as error:
            raise self._death() from error

    def hear(self) -> tuple[int, _Done | None]:
        """The number of the item in hand, and its result if that is what comes.

        An error is raised here, progress is passed on.
        """
        try:
            said = pickle.loads(self.line.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        if isinstance(said, Exception):
            raise said
        number, progress = self.held[0]
        if isinstance(said, _Done):
            self.held.popleft()
            return number, said
        if progress is not None:
            progress(*said)
        return number, None

    def _death(self) -> IlmeError:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return IlmeError(f"a worker process {how} before its work was done; fewer processes need less memory")


def _serve(parent: Connection) -> None:
    """The life of a process: it is told the work, then one item after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which ends this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also in the middle of an item
    told = queue.SimpleQueue[bytes]()
    threading.Thread(target=_listen, args=(parent, told), daemon=True).start()

    def report(done: int, total: int) -> None:
        parent.send_bytes(pickle.dumps((done, total)))

    try:
        work = pickle.loads(told.get())
        while True:
            item, reports = pickle.loads(told.get())
            parent.send_bytes(pickle.dumps(_Done(work(item, report if reports else None))))
    except Exception as error:
        with suppress(OSError):  # the parent is gone
            parent.send_bytes(pickle.dumps(_portable(error)))
        threading.Event().wait()  # until the parent has read it and ends this process


def _listen(parent: Connection, told: queue.SimpleQueue[bytes]) -> None:
    """Takes what the parent sends at once, so that it never waits for a process that waits for it."""
    while True:
        try:
            told.put(parent.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone: nobody wants what is being done


def _portable(error: Exception) -> Exception:
    """The error itself, or one that says the same if it cannot travel; with a note where it came from."""
    note = f"In a worker process:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = IlmeError(str(error)) if isinstance(error, IlmeError) else RuntimeError(repr(error))
    error.add_note(note)
    return error
