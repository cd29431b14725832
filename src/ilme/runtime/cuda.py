"""What CUDA needs: a device that is there, kernels that can run, work that is recorded, and quiet meanwhile."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ilme.errors import BadInputError

__all__ = ["Executor", "check_device", "kernels_run_on", "no_collection"]


def check_device(name: str) -> None:
    """An error, in words, for a device that torch does not know or this machine does not have."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInputError(f"there is no device {name!r}; name cpu, cuda, or one of several: cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInputError(
            f"the device is {name}, and torch finds no CUDA here: use cpu, or install a CUDA build of torch"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInputError(f"there is no {name}: this machine has {torch.cuda.device_count()} CUDA devices")


def kernels_run_on(device: torch.device) -> bool:
    """On CUDA devices where Triton is installed, which it is with torch's own CUDA builds."""
    return device.type == "cuda" and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside.

    A graph that is no longer used may hang in a cycle of references. Destroying it while another one is recorded makes
    CUDA give that recording up, and the collector may run at any time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Executor:
    """Runs a piece of work of fixed shapes: the first time as it is, from the second on from a CUDA graph."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.records = device.type == "cuda"
        self.forget()

    def forget(self) -> None:
        """What has been recorded so far is not run again."""
        self.known: set[str] = set()
        self.graphs: dict[str, Any] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.records else None
        self.aside: Any = torch.cuda.Stream(self.device) if self.records else None  # type: ignore[no-untyped-call]

    def __call__(self, name: str, work: Callable[[], None]) -> None:
        if not self.records or name not in self.known:
            self.known.add(name)
            work()
            return
        if name not in self.graphs:
            self.graphs[name] = self._record(work)
        self.graphs[name].replay()

    def wait(self) -> None:
        """Until what has been run is there for the host."""
        if self.records:
            torch.cuda.current_stream(self.device).synchronize()

    def _record(self, work: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        self.aside.wait_stream(torch.cuda.current_stream(self.device))
        with no_collection(), torch.cuda.stream(self.aside):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph
