"""Whisper weights in whisper.cpp's ggml files (float32 and float16; not the quantised ones).

Little-endian: the magic number, eleven int32 of hyper-parameters, the mel filters, the vocabulary, then for
each tensor its rank, name length and type, its dimensions (fastest first), its name and its numbers.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ilme.errors import CheckpointError

__all__ = ["read_ggml"]

MAGIC = 0x67676D6C
TYPES = {0: "<f4", 1: "<f2"}
DIMENSIONS = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)


def read_ggml(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The dimensions and the parameters, under OpenAI's names."""
    with path.open("rb") as file:
        if _ints(file, 1, path)[0] != MAGIC:
            raise CheckpointError(f"{path} is no whisper.cpp model: its first four bytes are not 'ggml'")
        values = _ints(file, 11, path)
        dims = dict(zip(DIMENSIONS, values, strict=False))  # the eleventh is the number format
        mels, bins = _ints(file, 2, path)
        _read(file, mels * bins * 4, path)
        for _ in range(_ints(file, 1, path)[0]):
            _read(file, _ints(file, 1, path)[0], path)
        parameters: dict[str, Tensor] = {}
        while head := file.read(12):
            name, value = _tensor(file, head, path)
            parameters[name] = value
    return dims, parameters


def _tensor(file: BinaryIO, head: bytes, path: Path) -> tuple[str, Tensor]:
    if len(head) < 12:
        raise CheckpointError(f"{path} ends in the middle of a tensor")
    rank, length, kind = struct.unpack("<3i", head)
    shape = _ints(file, rank, path)[::-1]
    name = _read(file, length, path).decode()
    if kind not in TYPES:
        raise CheckpointError(f"{path}: tensor {name} has the quantised type {kind}; use a float16 or float32 file")
    data = _read(file, int(np.prod(shape)) * np.dtype(TYPES[kind]).itemsize, path)
    value = torch.from_numpy(np.frombuffer(data, TYPES[kind]).reshape(shape).astype(np.float32))
    # whisper.cpp writes the biases of the convolutions as columns.
    return name, value.flatten() if name.endswith(("conv1.bias", "conv2.bias")) else value


def _ints(file: BinaryIO, count: int, path: Path) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", _read(file, 4 * count, path))


def _read(file: BinaryIO, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise CheckpointError(f"{path} is cut off: {size} bytes wanted, {len(data)} left")
    return data
