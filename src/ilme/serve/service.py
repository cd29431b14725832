"""The service without its protocol: domains, admission, recordings to segments. What HTTP and WebSocket both use."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ilme.data.audio import audio_info
from ilme.data.audio_stream import AudioStream
from ilme.errors import BadInputError, IlmeError
from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window, stream_windows
from ilme.serve.batching import Decoders, Pool
from ilme.serve.metrics import Metrics
from ilme.serve.options import ServeOptions
from ilme.serve.tasks import NOTHING, About, Describe, Failure, Settings, Task
from ilme.serve.workers import ProcessWorker, ThreadWorker
from ilme.workflows.transcribe import Job

__all__ = ["Busy", "Recording", "RequestError", "Service"]

READERS = 4  # threads that read uploads
Result = TypeVar("Result")


class RequestError(IlmeError):
    """A request that cannot be met.

    Attributes:
        status: Of HTTP.
        param: The field that is wrong; empty if it is none.
        headers: To be sent with the answer.
    """

    def __init__(self, message: str, status: int = 400, param: str = "", headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.param, self.headers = status, param, dict(headers or {})


class Busy(RequestError):  # noqa: N818 - it says what is the matter
    """Too many requests are under way."""

    def __init__(self, seconds: float) -> None:
        after = max(1, math.ceil(seconds))
        super().__init__(
            f"the service has all the requests that it takes; try again in {after} s",
            429,
            "",
            {"Retry-After": f"{after}"},
        )


@dataclass(frozen=True)
class Recording:
    """An upload that was opened, and all of which can be read.

    Attributes:
        name: The domain that it is for.
        stream: Its samples.
        settings: What was asked for.
    """

    name: str
    stream: AudioStream
    settings: Settings = NOTHING

    @property
    def seconds(self) -> float:
        return self.stream.seconds


class Service:
    """Domains by name, the workers that have them, and the requests that are under way.

    Args:
        jobs: The domains; the first is the one that an unnamed request gets.
        options: Limits and batches.
        workers: Processes; 0 decodes in a thread of this process.
        decoders: Makes what decodes in place of these workers, which then have the realtime streams alone.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        options: ServeOptions | None = None,
        workers: int = 1,
        decoders: Callable[[Metrics], Decoders] | None = None,
    ) -> None:
        if not jobs:
            raise BadInputError("name at least one domain folder or a model")
        self.jobs, self.options = dict(jobs), options or ServeOptions()
        self.about: dict[str, About] = {}
        self.created = {name: int(time.time()) for name in jobs}
        self.error = ""  # why a domain could not be loaded
        self.metrics = Metrics()
        self.under_way = 0
        make = ProcessWorker if workers else ThreadWorker
        self._make_pool: Callable[[int], Pool] = lambda count: Pool(
            partial(make, self.options.voice_activity),
            count,
            self.options,
            self.metrics.batch_done,
            self.metrics.workers_died.inc,
        )
        self.workers = max(1, workers)
        self._make_decoders = decoders
        self.pool: Decoders | None = None
        self._streams: Pool | None = None  # a worker that no batch holds up
        self._readers = ThreadPoolExecutor(READERS, "ilme-reader")
        self._loading: asyncio.Task[None] | None = None

    # --- its life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the workers; domains are loaded in the background."""
        self.pool = self._make_decoders(self.metrics) if self._make_decoders else self._make_pool(self.workers)
        self.pool.start()
        self.metrics.watch(self)
        self._loading = asyncio.create_task(self._load_all())

    async def _load_all(self) -> None:
        for name in list(self.jobs):
            try:
                await self.load(name)
            except RequestError as error:
                self.error = str(error)

    async def load(self, name: str) -> About:
        """Loads a domain on one of the workers; the others do when they first need it."""
        found: About | Failure = await self.run(Describe(name, self.jobs[name]))
        if isinstance(found, Failure):
            raise RequestError(f"{name} cannot be loaded: {found.message}", 500)
        self.about[name] = found
        return found

    async def add(self, name: str, job: Job) -> About | Failure:
        """One more domain, which is served as soon as it is loaded."""
        found: About | Failure = await self.run(Describe(name, job))
        if isinstance(found, About):
            self.about[name], self.created[name], self.jobs[name] = found, int(time.time()), job
        return found

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        for pool in (self.pool, self._streams):
            if pool is not None:
                await pool.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    @property
    def ready(self) -> bool:
        return not self.error and set(self.jobs) <= set(self.about)

    async def run(self, task: Task) -> Any:
        if self.pool is None:
            raise RequestError("the service has not started", 503)
        return await self.pool.run(task)

    async def run_stream(self, task: Task) -> Any:
        """What a task of a realtime stream gives; its worker starts with the first of them."""
        if self._streams is None:
            self._streams = self._make_pool(1)
        return await self._streams.run(task)

    async def prepare_stream(self, name: str) -> About:
        """What a domain is; one that streams is loaded where its streams will be heard."""
        about = await self.known(name)
        if about.streams:
            await self.run_stream(Describe(name, self.jobs[name]))
        return about

    def domain(self, name: str) -> str:
        """The domain of that name; an empty name is the first one's."""
        name = name or next(iter(self.jobs))
        if name not in self.jobs:
            raise RequestError(f"there is no model {name!r}; there are {', '.join(self.jobs)}", 404, "model")
        return name

    async def known(self, name: str) -> About:
        """What a domain is, when it is loaded."""
        if name not in self.about:
            return await self.load(name)
        return self.about[name]

    # --- requests ---------------------------------------------------------------------------------------------------

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A place among the requests that are under way; `Busy` if there is none."""
        if self.under_way >= self.options.queue:
            raise Busy(self.metrics.seconds_for(self.pool.seconds if self.pool else 0.0))
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def open(self, path: Path, title: str, name: str, settings: Settings = NOTHING) -> Recording:
        """Opens an upload for a domain; an error says what is wrong with it.

        Args:
            path: Where the upload is.
            title: What the client calls it.
            name: The domain.
            settings: What was asked for.
        """
        about = await self.known(name)
        try:
            seconds = (await self._read(audio_info, path)).seconds
            if seconds > self.options.longest:
                raise RequestError(
                    f"{title} lasts {seconds:.0f} s, and at most {self.options.longest:.0f} s are taken: cut it, or "
                    "start the service with a larger --options.longest",
                    413,
                    "file",
                )
            return Recording(name, await self._read(AudioStream, path, about.rate), settings)
        except RequestError:
            raise
        except (IlmeError, OSError) as error:
            raise RequestError(str(error).replace(str(path), title), 400, "file") from error

    async def windows(self, recording: Recording) -> list[Window]:
        """All windows of a recording that is not long."""
        about = self.about[recording.name]
        return await self._read(lambda: list(stream_windows(recording.stream, about.rate, about.window)))

    async def segments(self, recording: Recording) -> AsyncIterator[list[Segment]]:
        """The segments of each window of a recording, in order, as they are found.

        As much is read ahead as fills two batches; the rest stays on the disk.
        """
        about = self.about[recording.name]
        windows = iter(stream_windows(recording.stream, about.rate, about.window))
        ahead: deque[asyncio.Future[list[Segment] | Failure]] = deque()
        most = max(2, math.ceil(2 * self.options.batch_seconds / about.window))
        try:
            while True:
                while len(ahead) < most and (window := await self._read(next, windows, None)) is not None:
                    ahead.append(self.submit(recording.name, window, recording.settings))
                if not ahead:
                    return
                found = await ahead[0]
                ahead.popleft()
                if isinstance(found, Failure):
                    raise RequestError(found.message, 500)
                yield found
        finally:
            for future in ahead:
                future.cancel()

    def submit(
        self, name: str, window: Window, settings: Settings = NOTHING
    ) -> asyncio.Future[list[Segment] | Failure]:
        """One window for a domain, to be searched with others."""
        if self.pool is None:
            raise RequestError("the service has not started", 503)
        return self.pool.submit(name, self.jobs[name], window, settings)

    async def _read(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Reads in a thread, so that a slow disk or a long file does not hold up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(function, *arguments))
