"""Whisper weights in whisper.cpp's ggml files (float32 and float16; not the quantised ones).

Little-endian: the magic number, eleven int32 of hyper-parameters, the mel filters, the vocabulary, then for
each tensor its rank, name length and type, its dimensions (fastest first), its name and its numbers.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.openai_whisper import DIMENSIONS, check_dims
from ilme.errors import CheckpointError

__all__ = ["read_ggml"]

MAGIC = 0x67676D6C
TYPES = {0: "<f4", 1: "<f2"}
MOST_DIMENSIONS = 4  # of a tensor


def read_ggml(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The dimensions and the parameters, under OpenAI's names."""
    if not path.is_file():
        raise CheckpointError(f"{path} is {'a folder' if path.is_dir() else 'no file'}; name a whisper.cpp model")
    with path.open("rb") as file:
        if _ints(file, 1, path)[0] != MAGIC:
            raise CheckpointError(f"{path} is no whisper.cpp model: its first four bytes are not 'ggml'")
        values = _ints(file, 11, path)
        dims = dict(zip(DIMENSIONS, values, strict=False))  # the eleventh is the number format
        mels, bins = _ints(file, 2, path)
        _read(file, mels * bins * 4, path)
        words = _ints(file, 1, path)[0]
        if min(words, mels, bins) < 0:
            raise CheckpointError(
                f"{path} is damaged: its filters are {mels} by {bins}, its vocabulary has {words} words"
            )
        for _ in range(words):
            _read(file, _ints(file, 1, path)[0], path)
        parameters: dict[str, Tensor] = {}
        while head := file.read(12):
            name, value = _tensor(file, head, path)
            if name in parameters:
                raise CheckpointError(f"{path} is damaged: the tensor {name} stands in it twice")
            parameters[name] = value
    check_dims(path, dims, parameters)
    return dims, parameters


def _tensor(file: BinaryIO, head: bytes, path: Path) -> tuple[str, Tensor]:
    if len(head) < 12:
        raise CheckpointError(f"{path} ends in the middle of a tensor")
    rank, length, kind = struct.unpack("<3i", head)
    if not 1 <= rank <= MOST_DIMENSIONS:
        raise CheckpointError(f"{path} is damaged: a tensor has {rank} dimensions")
    shape = _ints(file, rank, path)[::-1]
    try:
        name = _read(file, length, path).decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is damaged: the name of a tensor is no text") from None
    if kind not in TYPES:
        raise CheckpointError(f"{path}: tensor {name} has the quantised type {kind}; use a float16 or float32 file")
    if min(shape) < 1:
        raise CheckpointError(f"{path} is damaged: tensor {name} has the shape {shape}")
    data = _read(file, math.prod(shape) * np.dtype(TYPES[kind]).itemsize, path)
    value = torch.from_numpy(np.frombuffer(data, TYPES[kind]).reshape(shape).astype(np.float32))
    # whisper.cpp writes the biases of the convolutions as columns.
    return name, value.flatten() if name.endswith(("conv1.bias", "conv2.bias")) else value


def _ints(file: BinaryIO, count: int, path: Path) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", _read(file, 4 * count, path))


def _read(file: BinaryIO, size: int, path: Path) -> bytes:
    left = path.stat().st_size - file.tell()
    if size < 0:
        raise CheckpointError(f"{path} is damaged: it gives a part {size} bytes")
    if size > left:  # asked before anything is allocated
        raise CheckpointError(f"{path} is cut off or damaged: {size} bytes wanted, {left} left")
    return file.read(size)
