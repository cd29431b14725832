"""Two pieces of work on a CUDA device at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

__all__ = ["side_by_side"]


def side_by_side(
    one: Callable[[], Tensor], other: Callable[[], Tensor], shared: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """What both give; on a CUDA device the kernels of the second run beside those of the first.

    A layer of an LSTM is one small kernel after another, each too small to fill a large device. Their backward passes
    run side by side as well, and a CUDA graph that is being recorded gets two branches.

    Args:
        one: Runs on the current stream.
        other: Runs on a second one.
        shared: Tensors of the current stream that `other` reads.
    """
    device = shared[0].device
    if device.type != "cuda":
        return one(), other()
    here, beside = torch.cuda.current_stream(device), _second(device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        second = other()
    first = one()
    here.wait_stream(beside)
    second.record_stream(here)
    for tensor in shared:  # not given back while the second stream may still read them, forward or backward
        tensor.record_stream(beside)
    return first, second


@cache
def _second(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
