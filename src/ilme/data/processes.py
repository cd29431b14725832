"""One function over many items in several processes, results in order, memory bounded."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["cores", "ordered_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """function(item) for each item, in the order of the items, which are taken only as fast as results are.

    With one worker everything happens in this process. Otherwise the function travels once to each process, so it may
    be large, and it must be an object that can travel: a function of a module or an instance of a class of one.
    """
    if workers == 1:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _keep, (function,)) as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(_call, item))
            if len(pending) > 3 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


_kept: Callable[[Any], Any]  # the function of this process


def _keep(function: Callable[[Any], Any]) -> None:
    global _kept
    _kept = function


def _call(item: Any) -> Any:
    return _kept(item)
