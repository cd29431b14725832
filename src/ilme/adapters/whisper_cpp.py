"""Whisper weights in whisper.cpp's ggml files (float32 and float16; not the quantised ones).

Little-endian: the magic number, eleven int32 of hyper-parameters, the mel filters, the vocabulary, then for
each tensor its rank, name length and type, its dimensions (fastest first), its name and its numbers.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.binary_file import BinaryFile
from ilme.adapters.openai_whisper import DIMENSIONS, check_dims
from ilme.errors import CheckpointError

__all__ = ["read_ggml"]

MAGIC = 0x67676D6C
TYPES = {0: "<f4", 1: "<f2"}
MOST_DIMENSIONS = 4  # of a tensor
HEAD = 12  # bytes before each


def read_ggml(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The dimensions and the parameters, under OpenAI's names."""
    with BinaryFile.opened(path, "a whisper.cpp model") as file:
        if file.numbers("<i")[0] != MAGIC:
            raise CheckpointError(f"{path} is no whisper.cpp model: its first four bytes are not 'ggml'")
        dims = dict(zip(DIMENSIONS, file.numbers("<11i"), strict=False))  # the eleventh is the number format
        mels, bins = file.numbers("<2i")
        file.read(mels * bins * 4)
        words = file.numbers("<i")[0]
        if min(words, mels, bins) < 0:
            raise CheckpointError(
                f"{path} is damaged: its filters are {mels} by {bins}, its vocabulary has {words} words"
            )
        for _ in range(words):
            file.read(file.numbers("<i")[0])
        parameters: dict[str, Tensor] = {}
        while file.left:
            name, value = _tensor(file)
            if name in parameters:
                raise CheckpointError(f"{path} is damaged: the tensor {name} stands in it twice")
            parameters[name] = value
    check_dims(path, dims, parameters)
    return dims, parameters


def _tensor(file: BinaryFile) -> tuple[str, Tensor]:
    if file.left < HEAD:
        raise CheckpointError(f"{file.path} ends in the middle of a tensor")
    rank, length, kind = file.numbers("<3i")
    if not 1 <= rank <= MOST_DIMENSIONS:
        raise CheckpointError(f"{file.path} is damaged: a tensor has {rank} dimensions")
    shape = file.numbers(f"<{rank}i")[::-1]
    name = file.text(length)
    if kind not in TYPES:
        raise CheckpointError(
            f"{file.path}: tensor {name} has the quantised type {kind}; use a float16 or float32 file"
        )
    if min(shape) < 1:
        raise CheckpointError(f"{file.path} is damaged: tensor {name} has the shape {shape}")
    data = file.read(math.prod(shape) * np.dtype(TYPES[kind]).itemsize)
    value = torch.from_numpy(np.frombuffer(data, TYPES[kind]).reshape(shape).astype(np.float32))
    # whisper.cpp writes the biases of the convolutions as columns.
    return name, value.flatten() if name.endswith(("conv1.bias", "conv2.bias")) else value
