"""What CUDA needs: a device that is there, kernels that can run, and quiet while a graph is recorded."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from ilme.errors import BadInputError

__all__ = ["check_device", "kernels_run_on", "no_collection"]


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
