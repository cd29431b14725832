"""A decoder over the workers of a Ray cluster: one actor per worker, each with the model and its encoder outputs.

Ray places the actors, restarts none, and carries the results; there is no scheduler of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from types import TracebackType
from typing import Any

from ilme.errors import BadInputError, MissingExtraError
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import Processes, SearchDecoder
from ilme.search.hypothesis import Hypothesis, NBest

__all__ = ["RayDecoder", "connect"]


class _Share:
    """What lives on a worker: the decoder of one share of the batches."""

    def __init__(self, make: Callable[[Processes], SearchDecoder], rank: int, world: int) -> None:
        self.decoder = make(Processes(rank, world))

    def decode(self, weights: FusionWeights, beam: int, search: Mapping[str, float]) -> dict[str, list[dict[str, Any]]]:
        lists = self.decoder.adjusted(search).share(weights, beam)
        return {i: [h.to_json() for h in nbest] for i, nbest in lists.items()}

    def ids(self) -> list[str]:
        return self.decoder.ids


class RayDecoder:
    """Implements `ilme.tuning.tuner.Decoder` over Ray; close it, or use it in a `with`, to free the workers.

    Args:
        make: Makes the decoder of one process; it is sent to the workers, so files that it names must be there.
        workers: How many actors.
        address: Of the cluster; `local` starts one on this machine, `auto` finds the one that is running.
        resources: What Ray is to reserve for each, such as {"num_cpus": 2, "num_gpus": 1}.
    """

    def __init__(
        self,
        make: Callable[[Processes], SearchDecoder],
        workers: int,
        address: str = "local",
        resources: dict[str, float] | None = None,
    ) -> None:
        if workers < 1:
            raise BadInputError(f"Ray needs at least one worker, got {workers}")
        self._ray, self._started = connect(address)
        ray = self._ray
        actor = ray.remote(**(resources or {"num_cpus": 1}))(_Share)
        self._search: dict[str, float] = {}
        self._shares = [actor.remote(make, rank, workers) for rank in range(workers)]

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """As `SearchDecoder.decode`: the same lists, whatever the number of workers."""
        parts = self._ray.get([share.decode.remote(weights, beam, self._search) for share in self._shares])
        lists = {i: [Hypothesis.from_json(h) for h in nbest] for part in parts for i, nbest in part.items()}
        ids = self._ray.get(self._shares[0].ids.remote())
        return {i: lists[i] for i in ids}

    def adjusted(self, search: Mapping[str, float]) -> RayDecoder:
        """The same workers with these search options changed; it is this decoder that is closed."""
        other = copy(self)
        other._search = dict(search)
        return other

    def close(self) -> None:
        for share in self._shares:
            self._ray.kill(share)
        self._shares = []
        if self._started:
            self._ray.shutdown()

    def __enter__(self) -> RayDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(address: str) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether it was this call that connected it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        return ray, False
    try:
        if address == "local":
            ray.init(include_dashboard=False, log_to_driver=False)
        else:
            ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInputError(
            f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}; start one with `ray start --head`, or "
            "give --ray local"
        ) from error
    return ray, True
