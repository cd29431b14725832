"""Networks stored in 8 bits: a quarter of the size of float32, for shipping.

    W_oi ≈ s_o Q_oi,   s_o = max_i |W_oi| / 127,   Q rounded to int8

A matrix NAME becomes NAME (int8) and NAME.scale (float32, one for each row); vectors stay as float16. The header is
that of the checkpoint it was made from, with the entry `ilme_int8` beside it; loading makes float32 of it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.runtime.configs import json_object
from ilme.runtime.tensors import read_tensors, write_tensors

__all__ = ["from_int8", "is_int8", "to_int8"]

_ENTRY = "ilme_int8"
_SCALE = ".scale"


def is_int8(header: Mapping[str, str]) -> bool:
    """Whether a file with this header is stored in 8 bits."""
    return _ENTRY in header


def to_int8(checkpoint: Path, out: Path) -> None:
    """Writes a checkpoint of ours in 8 bits.

    Left out: an AED's CTC layer, which only training uses, and an LM's copy of the tokenizer.
    """
    tensors, header = read_tensors(checkpoint)
    about = json_object(header.get("ilme", "null"), f"{checkpoint}, entry 'ilme' of its header,")
    if about.get("kind") == "lm":
        about["tokenizer"] = None
    if isinstance(about.get("config"), dict) and about["config"].get("ctc"):
        about["config"]["ctc"] = False
        tensors = {name: value for name, value in tensors.items() if not name.startswith("ctc.")}
    header["ilme"] = json.dumps(about)
    stored: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.ndim < 2 or not value.is_floating_point():
            stored[name] = value.half() if value.is_floating_point() else value
            continue
        rows = value.float().flatten(1)
        scale = rows.abs().amax(1).clamp(min=1e-12) / 127
        stored[name] = (rows / scale[:, None]).round().to(torch.int8).view(value.shape)
        stored[name + _SCALE] = scale
    write_tensors(out, stored, {**header, _ENTRY: "1"})


def from_int8(tensors: Mapping[str, Tensor], file: object = "these weights") -> dict[str, Tensor]:
    """The weights in float32; `file` is named where a scale is missing or wrong."""
    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith(_SCALE):
            continue
        if value.dtype == torch.int8:
            scale = tensors.get(name + _SCALE)
            if scale is None or not value.ndim or scale.shape != value.shape[:1] or not scale.is_floating_point():
                found = "none" if scale is None else f"{tuple(scale.shape)} of {scale.dtype}"
                raise CheckpointError(
                    f"{file} is damaged: {name} in 8 bits needs a scale for each of its rows, and there is {found}"
                )
            plain[name] = value.float() * scale.float().view(-1, *[1] * (value.ndim - 1))
        else:
            plain[name] = value.float() if value.is_floating_point() else value
    return plain
