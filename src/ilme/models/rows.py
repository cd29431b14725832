"""Which rows of a matrix are equal. In a beam many sequences continue one parent, and carry the same rows from it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distinct_rows"]

AS_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (m,) of x (n, …) that equal no earlier one, and which of those m each row (n,) equals.

    Candidates are rows whose bits have the same sum; whether they are equal is then checked. Where it cannot be told
    without waiting for the device (CUDA) every row counts as distinct.
    """
    rows = x.flatten(1)
    every = torch.arange(len(rows), device=x.device)
    if len(rows) < 2 or rows.is_cuda:
        return every, every
    sums = rows.view(AS_INTEGERS[rows.element_size()]).sum(1)
    values, of = sums.unique(return_inverse=True)
    if len(values) == len(rows):
        return every, every
    first = every.new_full((len(values),), len(rows)).scatter_reduce_(0, of, every, "amin")
    if not torch.equal(rows.index_select(0, first.index_select(0, of)), rows):
        return every, every
    return first, of
