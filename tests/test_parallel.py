"""Work in processes: the same results in the same order, progress, errors of the same kind, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field

import pytest

from ilme.errors import BadInputError, IlmeError, MissingExtraError
from ilme.runtime.processes import in_processes


@dataclass
class Square:
    """Squares, and says in which process and how many it has done there."""

    done: list[int] = field(default_factory=list)

    def __call__(self, item, progress):
        if progress is not None:
            progress(item, 10)
        self.done.append(item)
        return item * item, os.getpid(), len(self.done)


def quiet(item):
    return None


def refuse(item, progress):
    if item == 1:
        raise BadInputError("1 is not wanted")
    time.sleep(60)


def lack(item, progress):
    raise MissingExtraError("ray", "ray")


def err(item, progress):
    return 1 / item


def die(item, progress):
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def leave(item, progress):
    raise SystemExit(3)


@pytest.mark.parametrize(("count", "items", "used"), [(1, 5, 1), (2, 5, 2), (9, 3, 3), (2, 1, 1), (2, 0, 0)])
def test_results_come_in_order_from_as_many_processes_as_have_work(count, items, used):
    begun, seen = [], []

    def begin(item):
        begun.append(item)
        return lambda done, total: seen.append((item, done, total))

    found = in_processes(Square(), range(items), count, begin)
    assert [square for square, _, _ in found] == [i * i for i in range(items)]
    assert begun == list(range(items)) and sorted(seen) == [(i, i, 10) for i in range(items)]
    processes = {process for _, process, _ in found}
    assert len(processes) <= used and (os.getpid() in processes) == (used == 1)
    assert sum(nth == 1 for _, _, nth in found) == len(processes)  # what it keeps, it has for the next


@pytest.mark.parametrize(
    ("work", "error", "says"),
    [
        (refuse, BadInputError, "1 is not wanted"),
        (lack, MissingExtraError, r"pip install 'ilme\[ray\]'"),
        (err, ZeroDivisionError, "division"),
        (die, IlmeError, "SIGKILL"),
        (leave, IlmeError, "status 3"),
    ],
)
def test_an_error_arrives_at_once_and_ends_every_process(work, error, says):
    began = time.monotonic()
    with pytest.raises(error, match=says):
        in_processes(work, [0, 1, 0], 2, quiet)
    assert time.monotonic() - began < 30 and not multiprocessing.active_children()


def test_an_error_says_where_in_the_worker_it_came_from():
    with pytest.raises(ZeroDivisionError) as caught:
        in_processes(err, [0, 1], 2, quiet)
    assert "return 1 / item" in caught.value.__notes__[0]


def test_an_interruption_ends_every_process():
    def begin(item):
        if item == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_processes(Square(), [0, 1, 2], 2, begin)
    assert not multiprocessing.active_children()
