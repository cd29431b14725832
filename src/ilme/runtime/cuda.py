"""What CUDA needs: whether Triton kernels can run, and quiet while a graph is recorded."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["kernels_run_on", "no_collection"]


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
