"""Language models to which case and punctuation are not there, over the tokens of a model that writes both.

Domain text is often lower case without punctuation, while the model writes "Hello, Elizabeth." An LM that has never
seen a comma must not forbid it. So every token stands for a folded one, or for nothing:

    f(" Hello") = f(" hello") = " hello",   f(" Elizabeth") = " elizabeth",   f(",") = nothing

    score(y) = Σ_u [f(y_u) ≠ nothing] · log P(f(y_u) | f(y_1) … f(y_{u−1}))

A folded token is a class of the model's own tokens, those that differ in case alone, and one of them stands for all:
each token has one class, so that a folded row is one gather, and no token must be spelled out in smaller ones. That is
a score and not a distribution over tokens: " Hello" and " hello" both get all of their class, "," gets log 1. The model
alone then decides on case and punctuation.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import SharedStep, TokenScorer
from ilme.runtime.state import State, map_tensors
from ilme.tokens import Tokens, check_same_vocabulary

__all__ = ["FoldedInternal", "FoldedScorer", "FoldedSharedStep", "Folds", "fold_internal"]

NOTHING = -1
SPACES = " Ġ▁"  # how inventories write the space before a word
SPOKEN = frozenset("$%&+=@#<>^|~")  # signs that stand for a word
UNSPOKEN = frozenset(string.punctuation) - SPOKEN
LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Folds:
    """Which folded token each token of an inventory stands for.

    Only the case of A–Z and ASCII punctuation are folded: byte-level inventories write other letters in parts. Special
    ids, and pieces in angle brackets, stand for themselves.

    Args:
        tokens: The inventory.
        device: Where the index is kept.
    """

    def __init__(self, tokens: Tokens, device: torch.device | str = "cpu") -> None:
        if tokens.eos is None:
            raise BadInputError("this inventory has no eos; a folded LM needs one to end a sentence")
        self.tokens = tokens
        ids = {piece: i for i, piece in reversed(list(enumerate(tokens.pieces)))}
        classes: dict[str, int] = {}
        found: list[int] = []
        for i, piece in enumerate(tokens.pieces):
            if i in tokens.special or (piece.startswith("<") and piece.endswith(">") and len(piece) > 2):
                found.append(i)
            elif set(piece.lstrip(SPACES)) <= UNSPOKEN:
                found.append(NOTHING)
            else:
                lower = piece.translate(LOWER)
                found.append(classes.setdefault(lower, ids.get(lower, i)))
        self.classes = tuple(found)
        index = torch.tensor(found, device=device)
        self.silent = index == NOTHING  # (V,)
        # What is read for a silent token does not matter; the end is read, since every LM has it.
        self.index = index.masked_fill(self.silent, tokens.eos)  # (V,)

    def __call__(self, labels: Iterable[int]) -> list[int]:
        """A sequence of tokens, folded: no longer than it was."""
        return [c for c in (self.classes[label] for label in labels) if c != NOTHING]


class FoldedScorer:
    """An LM over folded tokens as a TokenScorer over the model's; the state is its state, and its last rows (n, V).

    Args:
        base: An LM over the same ids, made from folded sequences (`Folds.__call__`). Its state must keep its shape.
        folds: What each token stands for.
    """

    def __init__(self, base: TokenScorer, folds: Folds) -> None:
        check_same_vocabulary(folds.tokens, base.tokens, "model", "folded LM")
        if base.tokens.eos != folds.tokens.eos:
            raise BadInputError(f"the end is id {folds.tokens.eos} in the model and {base.tokens.eos} in the folded LM")
        self.base, self.folds = base, folds
        self.tokens: Tokens = base.tokens
        self.device: torch.device = base.device

    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.base.start(n)
        return self._unfold(rows), (rows, state)

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        old_rows, old = state
        silent = self.folds.silent[labels]  # (n,)
        rows, new = self.base.score(self.folds.index[labels], old)

        def keep(before: Tensor, after: Tensor) -> Tensor:
            if before.shape != after.shape:
                raise BadInputError("this LM's state grows with each label; it cannot pass over punctuation")
            return torch.where(silent.view(-1, *[1] * (after.dim() - 1)), before, after)

        rows, new = keep(old_rows, rows), map_tensors(keep, old, new)
        return self._unfold(rows), (rows, new)

    def finish(self, rows: Tensor) -> Tensor:
        return self.base.finish(rows)

    def _unfold(self, rows: Tensor) -> Tensor:
        """log P of each token's class (n, V) out of the rows of the base (n, V); 0 for what stands for nothing."""
        return rows[:, self.folds.index].masked_fill(self.folds.silent, 0.0)


class FoldedInternal:
    """An internal LM that scores what a folded LM scores: classes, given that no punctuation comes.

        log Σ_{v: f(v) = c} P(v | y) − log Σ_{v: f(v) ≠ nothing} P(v | y)

    It hears case and punctuation in y, as its model does. Without this, taking away P(",") and adding nothing would
    reward every comma.

    Args:
        internal: The internal LM over the model's tokens.
        folds: What each token stands for.
    """

    def __init__(self, internal: TokenScorer, folds: Folds) -> None:
        check_same_vocabulary(folds.tokens, internal.tokens, "folded inventory", "internal LM")
        self.internal, self.folds = internal, folds
        self.tokens: Tokens = internal.tokens
        self.device: torch.device = internal.device

    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.internal.start(n)
        return self._fold(rows), state

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        rows, state = self.internal.score(labels, state)
        return self._fold(rows), state

    def finish(self, rows: Tensor) -> Tensor:
        return self.internal.finish(rows)

    def _fold(self, rows: Tensor) -> Tensor:
        """The formula above for rows (n, V); 0 for what stands for nothing."""
        spoken = rows.masked_fill(self.folds.silent, -torch.inf).softmax(-1)
        mass = torch.zeros_like(spoken).index_add_(1, self.folds.index, spoken)
        # A class that no probability is left for keeps a finite score: its logarithm is only subtracted.
        floor = torch.finfo(mass.dtype).tiny
        return mass.clamp_(min=floor).log_()[:, self.folds.index].masked_fill(self.folds.silent, 0.0)


class FoldedSharedStep(FoldedInternal):
    """A `FoldedInternal` whose internal LM shares the work of its model's own step."""

    internal: SharedStep  # type: ignore[assignment]

    @property
    def host(self) -> Any:
        return self.internal.host

    def step_both(
        self, labels: Tensor, state: State, internal: State, memory: State
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one pass over the weights."""
        own, (rows, new) = self.internal.step_both(labels, state, internal, memory)
        return own, (self._fold(rows), new)


def fold_internal(internal: TokenScorer, folds: Folds) -> FoldedInternal:
    """The folded form of an internal LM; one that takes its steps together with its host still does."""
    return (FoldedSharedStep if isinstance(internal, SharedStep) else FoldedInternal)(internal, folds)
