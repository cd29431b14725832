"""What internal LMs have in common: each is made from a model, and some put one vector in place of its acoustics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.tokens import Tokens

__all__ = ["HostedLM", "VectorLM", "fitting_vector"]


class HostedLM:
    """A scorer with the tokens and the device of the model that it was made from.

    Attributes:
        host: The model.
    """

    host: Any

    @property
    def tokens(self) -> Tokens:
        return self.host.tokens  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self.host.device  # type: ignore[no-any-return]

    def finish(self, rows: Tensor) -> Tensor:
        """log P(end | sequence) as the model scores it; 0 if it has no end."""
        eos = self.tokens.eos
        return rows.new_zeros(len(rows)) if eos is None else rows[:, eos]


class VectorLM(HostedLM):
    """An internal LM whose acoustics are one vector.

    Args:
        host: The model.
        vector: It takes the place of the acoustics; None removes them.
        scale: κ, a factor of the logits.
        how: How it was estimated.
    """

    def __init__(self, host: Any, vector: Tensor | None = None, scale: float = 1.0, how: str = "") -> None:
        self.host, self.vector, self.scale = host, vector, scale
        self.how = how or ("removed" if vector is None else "vector")
        self.tensors: dict[str, Tensor] = {} if vector is None else {"vector": vector}


def fitting_vector(tensors: dict[str, Tensor], like: Tensor, what: str) -> Tensor | None:
    """The vector of a file, on the device and in the format of the rows (n, D) that it stands for; None if it has none.

    Raises:
        CheckpointError: It has another shape.
    """
    vector = tensors.get("vector")
    if vector is None:
        return None
    if vector.shape != like.shape[1:]:
        raise CheckpointError(
            f"this internal LM was made for another model: it puts a vector of {tuple(vector.shape)} in place of "
            f"{what} of {tuple(like.shape[1:])}"
        )
    return vector.to(like.device, like.dtype)
