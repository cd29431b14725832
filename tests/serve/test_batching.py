"""Which windows are searched together, and what happens when a worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.serve.batching import Batcher, Pool
from ilme.serve.options import ServeOptions
from ilme.serve.tasks import Failure, Recognise, Settings
from ilme.serve.workers import WorkerDied
from ilme.workflows.transcribe import Job

JOB = Job(model="none")
POISON = 13.0


def window(seconds: float, start: float = 0.0) -> Window:
    return Window(start, start + seconds, np.zeros(1, np.float32))


class Fake:
    """A worker that writes how long a window is, and dies over one of a certain length."""

    def __init__(self, asked: list[list[float]]) -> None:
        self.asked = asked

    def ask(self, task: Recognise) -> Any:
        lengths = [w.end - w.start for w in task.windows]
        self.asked.append(lengths)
        if POISON in lengths:
            raise WorkerDied("killed")
        return [[Segment(w.start, w.end, f"{w.end - w.start:g}")] for w in task.windows]

    def close(self) -> None:
        pass


def run(test: Callable[[Pool, list[list[float]]], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        asked: list[list[float]] = []
        pool = Pool(lambda: Fake(asked), 1, ServeOptions(**options))
        pool.start()
        await test(pool, asked)
        await pool.close()

    asyncio.run(main())


def texts(found: list[Any]) -> list[str]:
    return [f.message if isinstance(f, Failure) else f[0].text for f in found]


def test_windows_that_come_together_are_searched_together() -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        found = await asyncio.gather(*(pool.batcher.submit("a", JOB, window(s)) for s in (1, 2, 3)))
        assert texts(found) == ["1", "2", "3"] and asked == [[1, 2, 3]]

    run(test, wait=0.05)


def test_other_domains_and_settings_are_searched_apart() -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        submit = pool.batcher.submit
        await asyncio.gather(
            submit("a", JOB, window(1)), submit("b", JOB, window(2)), submit("a", JOB, window(3), Settings(words=True))
        )
        assert asked == [[1], [2], [3]]

    run(test, wait=0.01)


@pytest.mark.parametrize(("limits", "sizes"), [({"batch_size": 2}, [2, 2, 1]), ({"batch_seconds": 3.0}, [3, 2])])
def test_a_batch_has_limits(limits: dict, sizes: list[int]) -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        await asyncio.gather(*(pool.batcher.submit("a", JOB, window(1)) for _ in range(5)))
        assert [len(a) for a in asked] == sizes

    run(test, wait=0.01, **limits)


def test_a_full_batch_does_not_wait() -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        waiting = [pool.batcher.submit("a", JOB, window(1)) for _ in range(2)]
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting)

    run(test, wait=10_000.0, batch_size=2)


def test_a_window_whose_client_left_is_not_searched() -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        gone, stays = (pool.batcher.submit("a", JOB, window(s)) for s in (1, 2))
        gone.cancel()
        assert texts([await stays]) == ["2"] and asked == [[2]]

    run(test, wait=0.01)


def test_a_window_that_kills_workers_costs_nobody_else() -> None:
    async def test(pool: Pool, asked: list[list[float]]) -> None:
        found = await asyncio.gather(*(pool.batcher.submit("a", JOB, window(s)) for s in (1, POISON, 2)))
        assert texts(found) == ["1", "3 workers died over it", "2"]
        assert texts([await pool.batcher.submit("a", JOB, window(4))]) == ["4"], "and the next is heard"

    run(test, wait=0.01)


def test_the_batcher_says_how_much_waits() -> None:
    async def main() -> None:
        batcher = Batcher(ServeOptions())
        for seconds in (1, 2.5):
            batcher.submit("a", JOB, window(seconds))
        assert batcher.seconds == 3.5
        assert len(await batcher.take()) == 2 and batcher.seconds == 0

    asyncio.run(main())
