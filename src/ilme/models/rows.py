"""Which rows of a matrix are equal. In a beam many sequences continue one parent, and carry the same rows from it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["distinct_rows", "group_equal_rows"]

FEW = 8  # below this many rows nothing is gained by looking


def distinct_rows(*parts: Tensor) -> tuple[Tensor, Tensor] | None:
    """The rows (m,) of the given parts (n, …) that equal no earlier one, and which of those m each row (n,) equals.

    None where no two rows are equal, or where it cannot be told without waiting for the device (CUDA). Candidates are
    rows with the same product Σ_i √i x_i; whether they are equal is then checked.
    """
    n = len(parts[0])
    if n < FEW or parts[0].is_cuda:
        return None
    rows = [part.flatten(1) for part in parts]
    keys = [torch.linalg.vecdot(part, _square_roots(part.shape[1], part.dtype)) for part in rows]
    values, of = sum(keys[1:], keys[0]).unique(return_inverse=True)
    if len(values) == n:
        return None
    first = of.new_full((len(values),), n).scatter_reduce_(0, of, torch.arange(n), "amin")
    like = first.index_select(0, of)
    if not all(torch.equal(part.index_select(0, like), part) for part in rows):
        return None
    return first, of


def group_equal_rows(rows: Tensor) -> tuple[Tensor, list[list[int]]]:
    """The distinct ones (m, …) among rows (n, …), and which of the n equal each of them."""
    found = distinct_rows(rows)
    if found is None:
        return rows, [[i] for i in range(len(rows))]
    first, of = found
    members: list[list[int]] = [[] for _ in range(len(first))]
    for i, group in enumerate(of.tolist()):
        members[group].append(i)
    return rows.index_select(0, first), members


@cache
def _square_roots(width: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(1, width + 1, dtype=torch.float64).sqrt().to(dtype)
