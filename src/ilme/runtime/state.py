"""States are nests (tuples, lists, dicts) of tensors whose first dimension counts label sequences.

That is the whole contract: a search reorders, merges and stores the state of any scorer without knowing what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["State", "cat", "map_tensors", "select"]

State = Any


def map_tensors(function: Callable[..., Tensor], first: State, *others: State) -> State:
    """Applies `function` to the tensors that stand at the same place in each nest."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: map_tensors(function, first[key], *(o[key] for o in others)) for key in first}
    if isinstance(first, tuple | list):
        parts = [map_tensors(function, *items) for items in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise TypeError(f"a state holds tensors, tuples, lists, dicts and None, not {type(first).__name__}")


def select(state: State, index: Tensor) -> State:
    """The states of the sequences `index`, in that order; a sequence may be taken twice or not at all."""
    return map_tensors(lambda x: x.index_select(0, index), state)


def cat(states: list[State]) -> State:
    """One state that holds the sequences of all of them."""
    return map_tensors(lambda *xs: torch.cat(xs), states[0], *states[1:])
