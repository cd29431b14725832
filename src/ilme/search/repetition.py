"""A run of labels may stand only so many times in a row, whatever the model or an LM says.

For each distance d = 1 … span the guard counts how many labels, up to the last one, equal the label d places before
them. A run of d labels stands m + 1 times in a row exactly when that count reaches d·m, so the label that would take it
there is forbidden. Labels that are passed over, such as punctuation, are not there for the guard: they neither count
nor break a run.

Shapes: B utterances, K hypotheses of each, V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.search.prefixes import Lane

__all__ = ["RepetitionGuard", "repetition_lane"]

UNKNOWN = -1  # stands where a sequence has no label yet


class RepetitionGuard:
    """What it remembers of a sequence is one row: the last `span` labels, newest first, and the count at each distance.

    Args:
        most: Most times in a row that a run may stand.
        span: Longest run that is watched.
        size: V, the number of labels.
        passed_over: Labels that are not there for this guard.
        device: Where the labels are.
    """

    def __init__(
        self, most: int, span: int, size: int, passed_over: Sequence[int] = (), device: torch.device | str = "cpu"
    ) -> None:
        outside = [i for i in passed_over if not 0 <= i < size]
        if outside:
            raise BadInputError(f"the repetition guard cannot pass over id {outside[0]}: there are {size} labels")
        self.span = span
        self.limits = torch.arange(1, span + 1, device=device) * most
        self.counted = torch.ones(size, dtype=torch.bool, device=device)  # which labels are there for this guard
        self.counted[torch.tensor(list(passed_over), dtype=torch.long, device=device)] = False
        self.everything = not passed_over

    @property
    def width(self) -> int:
        """Numbers that it remembers of a sequence."""
        return 2 * self.span

    def start(self, batch: int, beam: int) -> Tensor:
        """What is remembered of empty sequences (B, K, width)."""
        rows = torch.zeros(batch, beam, self.width, dtype=torch.long, device=self.limits.device)
        rows[:, :, : self.span] = UNKNOWN
        return rows

    def forbid(self, scores: Tensor, memory: Tensor) -> None:
        """Writes −inf into scores (B, K, V) for the label, at each distance, that would be one repetition too many."""
        recent, counts = memory.split(self.span, dim=2)  # type: ignore[no-untyped-call]
        too_many = (counts + 1 >= self.limits) & (recent != UNKNOWN)
        label = recent.clamp(min=0)
        held = scores.gather(2, label).masked_fill(too_many, -torch.inf)
        scores.scatter_reduce_(2, label, held, "amin")  # one label may stand at several distances

    def advance(self, memory: Tensor, labels: Tensor) -> Tensor:
        """What is remembered (B, K, width) after one more label (B, K)."""
        recent, counts = memory.split(self.span, dim=2)  # type: ignore[no-untyped-call]
        new = labels[:, :, None]
        moved = torch.cat([new, recent[:, :, :-1], (counts + 1) * (recent == new)], 2)
        return moved if self.everything else torch.where(self.counted[new], moved, memory)

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """What is remembered of n empty sequences, as a network's output and its state."""
        memory = self.start(1, n)[0]
        return memory, memory

    def step(self, labels: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The same after one more label (n,)."""
        memory = self.advance(memory[None], labels[None])[0]
        return memory, memory


class Watched(Protocol):
    """The options of a search that watches for repetition."""

    @property
    def max_repeats(self) -> int: ...

    @property
    def repeat_span(self) -> int: ...


def repetition_lane(
    options: Watched, size: int, slots: int, device: torch.device
) -> tuple[RepetitionGuard | None, Lane | None]:
    """The guard over `size` labels; what it remembers of a label sequence is kept as a network's state is.

    None and None where repetitions are not counted.
    """
    if not options.max_repeats:
        return None, None
    guard = RepetitionGuard(options.max_repeats, options.repeat_span, size, device=device)
    return guard, Lane(guard.first, guard.step, slots)
