"""Whether Triton kernels can run."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

__all__ = ["kernels_run_on"]


def kernels_run_on(device: torch.device) -> bool:
    """On CUDA devices where Triton is installed, which it is with torch's own CUDA builds."""
    return device.type == "cuda" and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None
