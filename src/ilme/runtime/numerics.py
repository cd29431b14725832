"""Arithmetic that networks, searches and internal LMs share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["log_softmax"]


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last dimension, in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
