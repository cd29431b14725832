"""Windows of many requests, searched together: by seconds of audio, with a bounded wait.

    submit(window) → waits ≤ `wait` for others while a worker is idle → take_batch → a worker → its future is done

A window whose client has left is dropped before it is searched. Workers that die are replaced, and what they had is
done again: first all of it, then window by window, so that a window that kills a worker fails alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.serve.options import ServeOptions
from ilme.serve.tasks import NOTHING, Failure, Recognise, Settings, Task
from ilme.serve.workers import WorkerDied, Workers
from ilme.workflows.options import TranscribeOptions
from ilme.workflows.transcribe import Job, take_batch

__all__ = ["TRIES", "Batcher", "Decoders", "Key", "Pool", "Waiting"]

TRIES = 3  # of a task whose worker died
log = logging.getLogger("ilme.serve")


@dataclass(frozen=True)
class Key:
    """What windows must have in common to be searched together."""

    name: str
    settings: Settings


@dataclass(eq=False)
class Waiting:
    """A window that is to be searched.

    Attributes:
        key: What it can be searched with.
        job: The domain.
        window: The samples.
        done: Gets the segments, or a Failure.
        since: When it came.
    """

    key: Key
    job: Job
    window: Window
    done: asyncio.Future[list[Segment] | Failure]
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.window.end - self.window.start


class Batcher:
    """The windows that wait, and which of them are searched next.

    Args:
        options: Size of a batch, and how long it may be waited for.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.wait = options.wait
        self.size = TranscribeOptions(options.batch_seconds, options.batch_size)
        self.waiting: list[Waiting] = []
        self._came = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Of audio that wait."""
        return sum(w.seconds for w in self.waiting)

    def submit(
        self, name: str, job: Job, window: Window, settings: Settings = NOTHING
    ) -> asyncio.Future[list[Segment] | Failure]:
        done: asyncio.Future[list[Segment] | Failure] = asyncio.get_running_loop().create_future()
        self.waiting.append(Waiting(Key(name, settings), job, window, done))
        self._came.set()
        return done

    async def take(self) -> list[Waiting]:
        """The next batch: what waits longest, with what is like it; not before it is full or has waited enough."""
        while True:
            self.waiting = [w for w in self.waiting if not w.done.done()]  # whose client has left
            if not self.waiting:
                self._came.clear()
                await self._came.wait()
                continue
            first = self.waiting[0]
            alike = [w for w in self.waiting if w.key == first.key]
            left = first.since + self.wait - time.monotonic()
            if left <= 0 or self._fills(alike):
                batch = take_batch(alike, lambda w: w.seconds, self.size)
                taken = set(map(id, batch))
                self.waiting = [w for w in self.waiting if id(w) not in taken]
                return batch
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), left)
            except TimeoutError:
                continue

    def _fills(self, alike: Sequence[Waiting]) -> bool:
        longest = max(w.seconds for w in alike)
        return len(alike) >= self.size.batch_size or longest * len(alike) >= self.size.batch_seconds


class Decoders(Protocol):
    """What decodes, as the service sees it."""

    @property
    def seconds(self) -> float:
        """Of audio that wait."""
        ...

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, task: Task) -> Any:
        """What a task gives, or a `Failure`."""
        ...

    def submit(
        self, name: str, job: Job, window: Window, settings: Settings = NOTHING
    ) -> asyncio.Future[list[Segment] | Failure]:
        """A window, to be searched with others."""
        ...


class Pool:
    """Workers that take batches as they become free, and single tasks between them.

    Args:
        make: Starts a worker.
        count: How many.
        options: Of the batches.
        noted: Called with each batch, and the seconds that it took.
        died: Called when a worker died.
    """

    def __init__(
        self,
        make: Callable[[], Workers],
        count: int,
        options: ServeOptions,
        noted: Callable[[Sequence[Waiting], float], None] = lambda batch, seconds: None,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        self.make, self.count = make, count
        self.batcher = Batcher(options)
        self.noted, self.died = noted, died
        self._threads = ThreadPoolExecutor(count, "ilme-worker")
        self.workers: list[Workers | None] = [None] * count
        self._free = asyncio.Condition()
        self._busy = [False] * count
        self._loops: list[asyncio.Task[None]] = []

    @property
    def seconds(self) -> float:
        return self.batcher.seconds

    def submit(
        self, name: str, job: Job, window: Window, settings: Settings = NOTHING
    ) -> asyncio.Future[list[Segment] | Failure]:
        return self.batcher.submit(name, job, window, settings)

    def start(self) -> None:
        self._loops = [asyncio.create_task(self._search(), name=f"search-{k}") for k in range(self.count)]

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for worker in self.workers:
            if worker is not None:
                worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, task: Task) -> Any:
        """What a task gives, on whichever worker is free; a worker that dies over it is replaced."""
        place = await self._take_place()
        try:
            return await self._ask(place, task)
        finally:
            await self._give_back(place)

    async def _search(self) -> None:
        while True:
            batch = await self.batcher.take()
            place = await self._take_place()
            try:
                await self._recognise(place, batch)
            finally:
                await self._give_back(place)

    async def _take_place(self) -> int:
        async with self._free:
            await self._free.wait_for(lambda: not all(self._busy))
            place = self._busy.index(False)
            self._busy[place] = True
            return place

    async def _give_back(self, place: int) -> None:
        async with self._free:
            self._busy[place] = False
            self._free.notify()

    async def _recognise(self, place: int, batch: Sequence[Waiting]) -> None:
        key, job = batch[0].key, batch[0].job
        began = time.perf_counter()
        found = await self._ask(
            place, Recognise(key.name, job, [w.window for w in batch], key.settings), 1 if len(batch) > 1 else TRIES
        )
        if isinstance(found, Failure) and len(batch) > 1:
            for waiting in batch:
                await self._recognise(place, [waiting])
            return
        self.noted(batch, time.perf_counter() - began)
        results = [found] * len(batch) if isinstance(found, Failure) else found
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(result)

    async def _ask(self, place: int, task: Task, tries: int = TRIES) -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(tries):
            try:
                return await loop.run_in_executor(self._threads, self._blocking, place, task)
            except WorkerDied as error:
                log.warning("%s; it is replaced", error)
                self.died()
                worker, self.workers[place] = self.workers[place], None
                if worker is not None:
                    await loop.run_in_executor(None, worker.close)
        return Failure(f"{tries} workers died over it")

    def _blocking(self, place: int, task: Task) -> Any:
        worker = self.workers[place]
        if worker is None:
            worker = self.workers[place] = self.make()
        return worker.ask(task)
