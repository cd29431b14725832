"""What a recogniser consists of, as hashes: what other weights made in a folder is not taken for its own work."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn

from ilme.recogniser.packing import unmixed
from ilme.recogniser.recogniser import Recogniser

__all__ = ["contents"]


def contents(recogniser: Recogniser) -> dict[str, str]:
    """A hash of the numbers of the model, of the LM and of what is subtracted."""
    scorers = {"lm": recogniser.lm, "subtracted": recogniser.subtracted}
    return {
        "model": _hash(recogniser.model, None),
        **{name: "-".join(_hash(s, recogniser.model) for s in unmixed(scorer)) for name, scorer in scorers.items()},
    }


def _hash(network: Any, host: Any) -> str:
    """Of the tensors and arrays of a network, and of the modules that it keeps as attributes, but for its host."""
    total = hashlib.sha256(type(network).__name__.encode())
    for name, value in [("", network)] if isinstance(network, nn.Module) else sorted(vars(network).items()):
        if isinstance(value, nn.Module) and value is not host:
            for tensor in value.state_dict().values():
                total.update(_bytes(tensor))
        elif isinstance(value, torch.Tensor | np.ndarray):
            total.update(_bytes(torch.as_tensor(value)))
        elif isinstance(value, str | int | float):
            total.update(f"{name}={value!r}".encode())
    return total.hexdigest()[:16]


def _bytes(tensor: Any) -> bytes:
    if not isinstance(tensor, torch.Tensor):  # what packed modules add
        return repr(tensor).encode()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
