"""Work in processes: the same results in the same order, progress, errors of the same kind, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ilme.errors import BadInputError, IlmeError, MissingExtraError
from ilme.runtime.processes import cores, in_processes, ordered_map, standing_pool

LARGE = 1 << 20  # more bytes than a pipe holds


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


def keep_it(item, progress):
    return lambda: item


def square(x):
    if x == 99:
        raise ValueError("99 is not squared")
    return x * x


class Remembers:
    """The items that this process was given, and its number."""

    def __init__(self):
        self.seen = []

    def __call__(self, item):
        self.seen.append(item)
        return self.seen, os.getpid()


def enlarge(data):
    return data * 2


def interrupt_itself(item):
    os.kill(os.getpid(), signal.SIGINT)
    return item


class Unreadable:
    """Travels, but does not arrive."""

    def __reduce__(self):
        return int, ("not a number",)

    def __call__(self, item):
        return item


def wait_for_the_end(item):
    os.write(1, b"busy\n")  # in one piece, where several processes write
    time.sleep(600)


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
    with pytest.raises(error, match=says):
        in_processes(work, [0, 1, 0], 2, quiet)
    assert not multiprocessing.active_children()


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


@pytest.mark.parametrize("count", [1, 2])
def test_order_is_kept_and_items_are_taken_lazily(count):
    taken = []

    def items():
        for i in range(60):
            taken.append(i)
            yield i

    results = ordered_map(square, items(), count)
    assert next(results) == 0
    assert len(taken) <= 3 * count + 2
    assert list(results) == [i * i for i in range(1, 60)]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_arrives(count):
    with pytest.raises(ValueError, match="99"):
        list(ordered_map(square, [1, 99, 2], count))


def test_a_standing_pool_keeps_what_it_has():
    with standing_pool(Remembers(), 2) as over:
        first = list(over([0, 1]))
        assert [seen for seen, _ in first] == [[0], [1]]
        assert len({process for _, process in first} | {os.getpid()}) == 3
        assert {process: seen for seen, process in over([2, 3])} in (
            {first[0][1]: [0, 2], first[1][1]: [1, 3]},
            {first[0][1]: [0, 3], first[1][1]: [1, 2]},
        )
        assert list(over([])) == []
    assert not multiprocessing.active_children()


def test_an_error_ends_a_standing_pool():
    with pytest.raises(ValueError, match="99"), standing_pool(square, 2) as over:
        list(over([1, 99, 2]))
    assert not multiprocessing.active_children()


def test_large_items_and_large_results_pass_each_other():
    items = [bytes([i]) * LARGE for i in range(8)]
    assert list(ordered_map(enlarge, items, 2)) == [item * 2 for item in items]


def test_what_cannot_travel_is_an_error_that_says_so():
    with pytest.raises(Exception, match="pickle"):  # the result
        in_processes(keep_it, [0, 1], 2, quiet)
    with pytest.raises(ValueError, match="not a number"):  # the work
        list(ordered_map(Unreadable(), [0, 1], 2))
    with pytest.raises(Exception, match="pickle"):  # an item
        list(ordered_map(square, [lambda: 0, 1], 2))
    assert not multiprocessing.active_children()


def test_a_reader_that_stops_early_ends_every_process():
    results = ordered_map(square, range(1000), 2)
    assert next(results) == 0
    results.close()
    assert not multiprocessing.active_children()


def start(items: int) -> subprocess.Popen[str]:
    """A program whose processes are all in the middle of an item."""
    program = (
        "from ilme.runtime.processes import ordered_map\n"
        "from tests.runtime.test_processes import wait_for_the_end\n"
        f"if __name__ == '__main__': list(ordered_map(wait_for_the_end, range({items}), {items}))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(items):
        assert parent.stdout is not None and parent.stdout.readline() == "busy\n"
    return parent


def test_processes_end_when_their_parent_is_killed():
    parent = start(2)
    parent.kill()
    parent.communicate(timeout=60)  # ends when the last process has closed its standard output


def test_ctrl_c_is_the_parents_business():
    assert list(ordered_map(interrupt_itself, [0, 1], 2)) == [0, 1]
    parent = start(2)
    said = interrupted(parent)
    assert "KeyboardInterrupt" in said and "spawn_main" not in said, "a worker was interrupted, too"


def interrupted(parent: subprocess.Popen[str]) -> str:
    """What it says when Ctrl-C reaches every process; as a person would, it is pressed again if nothing happens."""
    for _ in range(20):
        os.killpg(parent.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return parent.communicate(timeout=15)[1]
    parent.kill()
    raise AssertionError("it does not end")


def test_there_is_a_core():
    assert cores() >= 1
