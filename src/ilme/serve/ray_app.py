"""The service on Ray Serve: one deployment takes requests, another decodes, in as many replicas as there is need for.

    client → Ingress (the same FastAPI application) → windows → Decoder replicas, batched by seconds of audio

A window is a request of its own to the decoders and has no effect but its answer: where a replica dies over it, it goes
to another. So a replica may be killed, moved or added at any time, and the client notices nothing.

`ilme serve --ray` runs this; so does `serve deploy` with a file such as configs/serve-ray.yaml, whose `import_path` is
`ilme.serve.ray_app:application`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ilme.errors import BadInputError, MissingExtraError
from ilme.recogniser.ray_decoder import connect
from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.serve.batching import TRIES, Key
from ilme.serve.metrics import Metrics
from ilme.serve.options import ServeOptions
from ilme.serve.run import jobs_of
from ilme.serve.service import Service
from ilme.serve.tasks import NOTHING, Describe, Failure, Recognise, Settings, Shelf, Task
from ilme.serve.workers import answer
from ilme.workflows.transcribe import Job

try:
    from ray import serve
    from ray.exceptions import RayActorError
except ImportError as error:
    raise MissingExtraError("ray", "ray") from error

__all__ = ["Asking", "RayPool", "application", "batch_size", "in_groups", "make_application", "serve_over_ray"]

NAME, DECODER = "ilme", "Decoder"
PAUSE = 0.2  # seconds before a window goes to another replica, while Ray notices that one is gone
PATIENCE = 120.0  # seconds in which a replica that is to go may finish what it has
log = logging.getLogger("ilme.serve")


@dataclass(frozen=True)
class Asking:
    """One window, as it travels to a replica.

    Attributes:
        key: What windows must have in common to be searched together.
        job: The domain.
        window: The samples.
    """

    key: Key
    job: Job
    window: Window

    @property
    def seconds(self) -> float:
        return self.window.end - self.window.start


def batch_size(options: ServeOptions, askings: Sequence[Asking]) -> int:
    """How much of a batch of `batch_seconds` these windows fill: the longest counts for each; one always fits."""
    longest = max(a.seconds for a in askings)
    filled = max(longest * len(askings), len(askings) * options.batch_seconds / options.batch_size)
    return min(math.ceil(filled), _most(options)) if len(askings) == 1 else math.ceil(filled)


def _most(options: ServeOptions) -> int:
    return max(1, math.floor(options.batch_seconds))


def in_groups(askings: Sequence[Asking]) -> list[list[int]]:
    """The places of windows that can be searched together: of one domain and one request's settings."""
    groups: dict[Any, list[int]] = {}
    for place, asking in enumerate(askings):
        groups.setdefault(asking.key, []).append(place)
    return list(groups.values())


# --- the replicas that decode -----------------------------------------------------------------------------------------


def _decoder(jobs: Mapping[str, Job], options: ServeOptions) -> Any:
    """The class of the replicas; its batches have the limits of these options."""

    class Decoder:
        """Recognisers on one replica, each search in a thread, so that Ray's questions are answered meanwhile."""

        def __init__(self) -> None:
            import torch

            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
            self.shelf = Shelf(options.voice_activity)
            self._one = threading.Lock()
            for name, job in jobs.items():  # a replica gets requests when it has everything loaded
                self._answer(Describe(name, job))

        def _answer(self, task: Task) -> Any:
            with self._one:
                return answer(task, self.shelf)

        @serve.batch(  # type: ignore[untyped-decorator]
            max_batch_size=_most(options),
            batch_wait_timeout_s=options.wait,
            batch_size_fn=partial(batch_size, options),
        )
        async def search(self, askings: list[Asking]) -> list[list[Segment] | Failure]:
            found: list[Any] = [None] * len(askings)
            for places in in_groups(askings):
                first = askings[places[0]]
                windows = [askings[place].window for place in places]
                task = Recognise(first.key.name, first.job, windows, first.key.settings)
                results = await asyncio.to_thread(self._answer, task)
                for n, place in enumerate(places):
                    found[place] = results if isinstance(results, Failure) else results[n]
            return found

        async def run(self, task: Task) -> Any:
            return await asyncio.to_thread(self._answer, task)

    return Decoder


# --- how the application asks them ------------------------------------------------------------------------------------


class RayPool:
    """The decoders as the service sees them (`ilme.serve.batching.Pool` is the same for processes of its own).

    Args:
        handle: Of the deployment.
        metrics: Where deaths are counted, and how long audio takes.
    """

    def __init__(self, handle: Any, metrics: Metrics) -> None:
        self._handle, self._metrics = handle, metrics
        self._waiting: dict[asyncio.Future[list[Segment] | Failure], float] = {}

    def start(self) -> None:
        """Ray has started the replicas."""

    async def close(self) -> None:
        for waiting in list(self._waiting):
            waiting.cancel()

    @property
    def seconds(self) -> float:
        """Of audio that was sent and has not come back."""
        return sum(self._waiting.values())

    def submit(
        self, name: str, job: Job, window: Window, settings: Settings = NOTHING
    ) -> asyncio.Future[list[Segment] | Failure]:
        asking = Asking(Key(name, settings), job, window)
        done = asyncio.ensure_future(self._search(asking))
        self._waiting[done] = asking.seconds
        done.add_done_callback(lambda future: self._waiting.pop(future, None))
        return done

    async def _search(self, asking: Asking) -> list[Segment] | Failure:
        """Together with others first; alone when a replica died over it, so that it costs them nothing again."""
        began = asyncio.get_running_loop().time()
        try:
            found = await self._handle.search.remote(asking)
        except RayActorError as error:
            self._died(error)
            alone = await self.run(Recognise(asking.key.name, asking.job, [asking.window], asking.key.settings))
            found = alone if isinstance(alone, Failure) else alone[0]
        self._metrics.heard(asking.key.name, asking.seconds, asyncio.get_running_loop().time() - began)
        return found  # type: ignore[no-any-return]

    async def run(self, task: Task) -> Any:
        for _ in range(TRIES):
            try:
                return await self._handle.run.remote(task)
            except RayActorError as error:
                self._died(error)
                await asyncio.sleep(PAUSE)
        return Failure(f"{TRIES} workers died over it")

    def _died(self, error: Exception) -> None:
        log.warning("a replica died; what it had goes to another (%s)", type(error).__name__)
        self._metrics.workers_died.inc()


# --- the deployments --------------------------------------------------------------------------------------------------


def make_application(
    jobs: Mapping[str, Job],
    options: ServeOptions,
    *,
    replicas: int = 1,
    key: str = "",
    origins: Sequence[str] = (),
    adapt: Path | None = None,
) -> Any:
    """The two deployments, for `serve.run`.

    Args:
        jobs: The domains by name; their folders must be where the replicas can read them.
        options: Limits and batches.
        replicas: Of the decoders.
        key: What clients must send; empty lets everybody in.
        origins: Sites whose pages may call.
        adapt: Where domains are kept that clients make from text; None makes none.
    """

    def build() -> Any:
        from ilme.serve.app import create_app

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        handle = serve.get_deployment_handle(DECODER, app_name=serve.get_replica_context().app_name)
        service = Service(jobs, options, 1, decoders=partial(RayPool, handle))
        return create_app(service, key=key, origins=origins, adapt=adapt)

    cuda = 1 if any(job.device.startswith("cuda") for job in jobs.values()) else 0
    patience = min(options.timeout, PATIENCE)
    decoder = serve.deployment(
        name=DECODER,
        num_replicas=replicas,
        max_ongoing_requests=2 * options.batch_size,
        graceful_shutdown_timeout_s=patience,
        ray_actor_options={"num_cpus": 1, "num_gpus": cuda},
    )(_decoder(jobs, options))

    class Requests:
        """Keeps the decoders' deployment among those of the application."""

        def __init__(self, decoders: Any) -> None:
            self.decoders = decoders

    ingress = serve.deployment(
        name="Ingress",
        max_ongoing_requests=options.connections,
        graceful_shutdown_timeout_s=patience,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress(build)(Requests))
    return ingress.bind(decoder.bind())


def application(args: Mapping[str, Any]) -> Any:
    """What `serve deploy` and `serve run` build, from the `args` of the application in their file.

    Args:
        args: `domains`, and what `ilme serve` has beside: `model`, `replicas`, `origins`, `adapt`, `device`, `format`,
            `options`. The key comes from the variable ILME_KEY of the machine that builds.
    """
    taken = ("domains", "model", "replicas", "origins", "adapt", "device", "format", "options")
    if unknown := [name for name in args if name not in taken]:
        raise BadInputError(f"there is no argument {unknown[0]!r}; there are {', '.join(taken)}")
    domains = args.get("domains") or []
    jobs = jobs_of(
        [domains] if isinstance(domains, str) else domains,
        args.get("model", ""),
        args.get("device", "cpu"),
        args.get("format", "float32"),
    )
    if not jobs:
        raise BadInputError("name at least one domain folder or a model under `domains`")
    try:
        options = replace(ServeOptions(), **args.get("options", {}))
    except TypeError as error:
        raise BadInputError(f"options: {error}") from error
    adapt = args.get("adapt")
    return make_application(
        jobs,
        options,
        replicas=int(args.get("replicas", 1)),
        key=os.environ.get("ILME_KEY", ""),
        origins=args.get("origins", ()),
        adapt=Path(adapt) if adapt else None,
    )


def serve_over_ray(
    jobs: Mapping[str, Job],
    *,
    address: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    options: ServeOptions | None = None,
    ready: Callable[[], None] = lambda: None,
    **more: Any,
) -> None:
    """Serves domains on a Ray cluster until SIGINT or SIGTERM.

    Args:
        jobs: The domains by name.
        address: Of the cluster; `local` starts one here, `auto` finds the one that is running.
        host: Address to listen at.
        port: To listen at.
        replicas: Of the decoders.
        options: Limits and batches.
        ready: Called when requests are answered.
        **more: As `make_application` takes it.
    """
    ray, _ = connect(address)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        serve.start(http_options={"host": host, "port": port})
        application = make_application(jobs, options or ServeOptions(), replicas=replicas, **more)
        serve.run(application, name=NAME, route_prefix="/")
        ready()
        over.wait()
    finally:
        with suppress(Exception):  # the cluster may be gone first
            serve.shutdown()
        ray.shutdown()
