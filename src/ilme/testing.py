"""Tiny models for tests and examples, and the checks that every model and scorer must pass."""

from __future__ import annotations

from typing import Literal

from ilme.tokens import Tokens

__all__ = ["numbered_tokens"]


def numbered_tokens(size: int, use: Literal["transducer", "attention"]) -> Tokens:
    """An inventory with the special unit at id 0, <unk> at 1 and pieces that are only numbers."""
    special = "<blank>" if use == "transducer" else "<eos>"
    pieces = (special, "<unk>", *(f"▁{i}" for i in range(2, size)))[:size]
    unk = 1 if size > 1 else None
    if use == "transducer":
        return Tokens(pieces, blank=0, unk=unk)
    return Tokens(pieces, sos=0, eos=0, unk=unk)
