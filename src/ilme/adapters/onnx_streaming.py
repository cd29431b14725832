"""Streaming encoders in ONNX (zipformer and its like, as icefall exports them): chunk by chunk, with states.

    encoder   x (N, T, bands), states …   → encoder_out (N, T', J), new states …

The file's metadata has T, the frames that a chunk reads, and decode_chunk_len, the frames from one chunk to the next.
Each state has one free size, the batch; where that stands differs from state to state. All start from zero. A whole
utterance goes the same way as one that is still being spoken, so that both give the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ilme.adapters.onnx_frames import number
from ilme.adapters.onnx_session import OnnxGraph, Shape, whole
from ilme.errors import CheckpointError

__all__ = ["ChunkStream", "ChunkedEncoder", "is_streaming"]

SILENT = math.log(1e-10)  # a filter bank in which nothing is heard: what follows the last frame
MOST_FRAMES, LARGEST_STATE = 10_000, 10**8


def is_streaming(graph: OnnxGraph) -> bool:
    """Whether an encoder takes states, by its metadata."""
    return "decode_chunk_len" in graph.metadata


class ChunkedEncoder:
    """A streaming encoder: what `encode` of a transducer needs, and streams of frames.

    Args:
        graph: The encoder's file.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        said = {name: graph.metadata.get(name, "") for name in ("T", "decode_chunk_len")}
        self.reads, self.step = (
            int(number(text, f"{graph.path}: {name}", 1, MOST_FRAMES)) for name, text in said.items()
        )
        if self.step > self.reads:
            raise CheckpointError(f"{graph.path} reads {self.reads} frames and then goes on by {self.step}")
        names, outputs = list(graph.inputs), list(graph.outputs)
        if len(outputs) != len(names) or len(graph.inputs[names[0]]) != 3:
            raise CheckpointError(
                f"{graph.path} is no streaming encoder: it has {len(names)} inputs and {len(outputs)} outputs, where "
                "frames (N, T, bands) and each state must have one"
            )
        self.bands = graph.inputs[names[0]][2]
        self._names, self._outputs = names, outputs
        for name in names[1:]:
            _check_state(graph, name)
        self.gives = self.start(1).push(torch.full((1, self.reads, self.bands or 80), SILENT)).shape[1]

    def __call__(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames (B, T, bands) and their lengths (B,) to f (B, T', J) and lengths (B,)."""
        stream = self.start(len(features))
        padding = torch.arange(features.shape[1]) >= lengths[:, None]
        parts = [stream.push(features.masked_fill(padding[:, :, None], SILENT)), stream.finish()]
        sizes = torch.div(lengths * self.gives + self.step - 1, self.step, rounding_mode="floor")
        f = torch.cat([part for part in parts if part.shape[1]], 1)
        return f[:, : int(sizes.max())], sizes

    def start(self, n: int) -> ChunkStream:
        """n utterances that begin now."""
        return ChunkStream(self, n)

    def states(self, n: int) -> list[Tensor]:
        """The states before the first chunk."""
        shapes = [self.graph.inputs[name] for name in self._names[1:]]
        return [torch.zeros([n if d is None else d for d in shape]) for shape in shapes]

    def run(self, chunk: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        out, *new = self.graph.run(dict(zip(self._names, [chunk, *states], strict=True)), self._outputs)
        for old, found, name in zip(states, new, self._names[1:], strict=True):
            if old.shape != found.shape:
                what = f"{tuple(old.shape)} and gives {tuple(found.shape)}"
                raise CheckpointError(f"{self.graph.path} reads a state {name} of {what}")
        return out.float(), new


class ChunkStream:
    """Utterances that are heard chunk by chunk.

    Args:
        encoder: The encoder.
        n: How many, side by side.
    """

    def __init__(self, encoder: ChunkedEncoder, n: int) -> None:
        self._encoder = encoder
        self._states = encoder.states(n)
        self._waiting = torch.zeros(n, 0, encoder.bands or 0)
        self._new = 0  # frames that no chunk has gone by

    def push(self, frames: Tensor) -> Tensor:
        """More frames (n, t, bands): what the encoder gives for every chunk that is whole now, (n, t', J)."""
        self._waiting = frames if not self._waiting.shape[1] else torch.cat([self._waiting, frames], 1)
        self._new += frames.shape[1]
        return self._joined(self._chunks())

    def finish(self) -> Tensor:
        """What is left, followed by silence, (n, t', J)."""
        steps = -(-max(self._new, 0) // self._encoder.step)
        wanted = (steps - 1) * self._encoder.step + self._encoder.reads if steps else 0
        self._waiting = F.pad(self._waiting, (0, 0, 0, max(wanted - self._waiting.shape[1], 0)), value=SILENT)
        return self._joined(self._chunks())

    def _chunks(self) -> Iterator[Tensor]:
        encoder = self._encoder
        while self._waiting.shape[1] >= encoder.reads and self._new > 0:
            f, self._states = encoder.run(self._waiting[:, : encoder.reads], self._states)
            self._waiting = self._waiting[:, encoder.step :]
            self._new -= encoder.step
            yield f

    def _joined(self, parts: Iterator[Tensor]) -> Tensor:
        found = list(parts)
        return torch.cat(found, 1) if found else torch.zeros(len(self._waiting), 0, 0)


def _check_state(graph: OnnxGraph, name: str) -> None:
    """An error unless exactly one size of a state is free, the batch, and the rest are not huge."""
    shape: Shape = graph.inputs[name]
    if shape.count(None) != 1:
        raise CheckpointError(f"{graph.path}: the state {name} {shape} must have one free size, the batch")
    numbers = math.prod(size for size in shape if size is not None)
    whole(numbers, f"{graph.path}: the numbers in the state {name} {shape}", 1, LARGEST_STATE)
