"""The body of a network recorded as CUDA graphs, one for each shape of batch.

LSTM layers and attention decoders are thousands of small kernels, one after another. A fast device waits for the host
to launch them; a recorded pass is launched at once. A recording has fixed shapes, so batches are padded to a few:

    T up a ladder whose steps are a quarter; for each rung the most rows B (to a multiple of 32; those added have one
    silent frame) and the most labels U (to a multiple of 8) that have come so far

A shape is recorded once it has come a few times and no longer grows; where a larger one comes, it takes its place.
Sources that know of it (`ResidentSource`) plan batches that fill their shapes. No two recordings run at a time, and a
backward pass always follows its forward pass, so all of them share one pool of memory.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ilme.runtime.cuda import no_collection

__all__ = ["Body", "RecordedBody", "graphs_obstacle", "pad_batch", "rung"]

ROWS, LABELS = 32, 8  # of which B and U are padded to multiples
SHORTEST, STEP = 16, 1.25  # frames of the lowest rung of the ladder, and its steps
WARM_UP = 2  # passes before the recording, in which kernels are chosen and compiled
SETTLED = 3  # times that a shape comes before it is recorded: recording takes as long as some ten passes

Shape = tuple[int, int, int]  # rows, frames and labels: B, T, U


class Body(nn.Module):
    """What a network does before its loss: (features, feature lengths, labels) to tensors whose rows are utterances.

    It must not look at values on the host, and a row must not depend on another.
    """

    def forward(self, features: Tensor, lengths: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        raise TypeError(f"{type(self).__name__} has no forward")


def graphs_obstacle(device: str, processes: int) -> str | None:
    """Why nothing can be recorded on this type of device with so many processes; None: it can."""
    if device != "cuda":
        return f"it needs a CUDA device, and this run is on {device}"
    return f"it needs one process, and this run has {processes}" if processes > 1 else None


def rung(T: int) -> int:
    """The frames that T frames are padded to."""
    frames = SHORTEST
    while frames < T:
        frames = int(frames * STEP)
    return frames


class RecordedBody:
    """Runs a body, from recordings where there is one of the shape.

    Args:
        body: What is run; its weights may change in place between passes, but not move.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self._shapes: dict[int, Shape] = {}
        self._seen: dict[int, int] = {}
        self._recorded: dict[int, Any] = {}
        self._pool = _Pool()

    @property
    def recordings(self) -> int:
        """How many there are."""
        return len(self._recorded)

    def __call__(self, features: Tensor, lengths: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """What the body gives, with labels and frames padded further; rows that were added are cut off again."""
        B, T, _ = features.shape
        frames = rung(T)
        known = self._shapes.get(frames, (0, frames, 0))
        shape = (max(known[0], _up(B, ROWS)), frames, max(known[2], _up(labels.shape[1], LABELS)))
        inputs = pad_batch(features, lengths, labels, shape)
        if shape != known:
            self._shapes[frames], self._seen[frames] = shape, 0
            self._recorded.pop(frames, None)
        self._seen[frames] += 1
        if self._seen[frames] < SETTLED:
            return _rows(self.body(*inputs), B)
        if frames not in self._recorded:
            self._recorded[frames] = _record(self.body, inputs, self._pool)
        return _rows(self._recorded[frames](*inputs), B)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def pad_batch(features: Tensor, lengths: Tensor, labels: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Features (B, T, D), lengths (B,) and labels (B, U), padded to (B', T', U'); added rows have one frame."""
    B, T, U = shape
    rows = B - len(features)
    return (
        pad(features, (0, 0, 0, T - features.shape[1], 0, rows)),
        pad(lengths, (0, rows), value=1),
        pad(labels, (0, U - labels.shape[1], 0, rows)),
    )


def _rows(outputs: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    return tuple(x[:count] for x in outputs)


class _Pool:
    """Memory that all recordings share. torch gives a pool up with its last graph, so an empty one stays in it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._kept: Any = None

    def handle(self) -> Any:
        if self._kept is None:
            self._handle, self._kept = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._kept, pool=self._handle):
                torch.zeros(1, device="cuda")
        return self._handle


def _record(body: Body, inputs: tuple[Tensor, ...], pool: _Pool) -> Any:
    """A callable that replays the forward pass, and the backward pass when it is due."""
    gc.collect()  # those that gave way give their memory back
    device = inputs[0].device.type
    kept = torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), False)
    with no_collection(), kept:  # weights are brought to 16 bits inside the recording, each time
        return torch.cuda.make_graphed_callables(
            _Wrapped(body),
            tuple(x.clone() for x in inputs),
            num_warmup_iters=WARM_UP,
            allow_unused_input=True,
            pool=pool.handle(),
        )


class _Wrapped(nn.Module):
    """The body inside a module of its own: recording replaces the forward pass of the module it is given."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.body(*inputs)  # type: ignore[no-any-return]
