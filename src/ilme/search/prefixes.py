"""The label sequences of a transducer beam: each is scored once by each network, however many frames it lives.

A pool holds P slots per utterance. A slot keeps, for one label sequence, what each network computed for it (a lane:
the output and the state). Blank changes nothing here. A sequence that leaves the beam and comes back finds its slot
by hash; slots are reused least recently used first. Only the rows that are asked for are computed, and only once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.runtime.state import State, map_tensors

__all__ = ["EMPTY", "DerivedLane", "Lane", "Outputs", "PrefixPool", "Start", "Step", "extend_hash", "is_ragged"]

EMPTY = 1  # hash of the empty sequence

Start = Callable[[int], tuple[Tensor, State]]
Step = Callable[[Tensor, State], tuple[Tensor, State]]


def extend_hash(hashes: Tensor, labels: Tensor) -> Tensor:
    """Hash of each sequence with one more label; 64 bits, wrapping."""
    mixed = hashes * 6364136223846793005 + (labels + 1) * 1442695040888963407
    return mixed ^ (mixed >> 29)


class Outputs(ABC):
    """What one network gives for every slot of all utterances.

    Args:
        first: Its output (1, …) for the empty sequence, which every slot starts with.
        slots: Slots in all.
        blank: For a language model whose least score is asked for: the unit that is none of its labels.
    """

    def __init__(self, first: Tensor, slots: int, blank: int | None) -> None:
        self.blank = blank
        self.output = first.expand(slots, *first.shape[1:]).clone()
        self.least = _least(first, blank).expand(slots).clone()
        self.stale = torch.zeros(slots, dtype=torch.bool, device=first.device)  # whose last label has not been read

    @abstractmethod
    def inherit(self, children: Tensor, parents: Tensor) -> None:
        """Children are their parents with one label more, which is read when they are first asked for."""

    @abstractmethod
    def read(self, slots: Tensor, labels: Tensor) -> Tensor:
        """Outputs (n, …) of the given slots (n,); `labels` (slots in all,) is each slot's last label."""

    def least_of(self, slots: Tensor, labels: Tensor) -> Tensor:
        """The least score (n,) that any label has in the given slots."""
        self.read(slots[self.stale[slots]], labels)
        return self.least.index_select(0, slots)

    def _keep(self, slots: Tensor, output: Tensor) -> None:
        self.output.index_copy_(0, slots, output.to(self.output.dtype))
        if self.blank is not None:
            self.least.index_copy_(0, slots, _least(output, self.blank).to(self.least.dtype))
        self.stale.index_fill_(0, slots, False)


class Lane(Outputs):
    """One network's outputs and states, over all slots of all utterances.

    Args:
        start: n to (outputs, states) of n empty sequences.
        step: Labels and states to (outputs, states) of the sequences one label longer.
        slots: Slots in all.
        blank: As for `Outputs`.
        ragged: Whether states of different sizes may be padded with zeros to one: they say themselves what counts.
    """

    def __init__(self, start: Start, step: Step, slots: int, blank: int | None = None, ragged: bool = False) -> None:
        output, state = start(1)
        super().__init__(output, slots, blank)
        self.step, self.ragged = step, ragged
        self.state = map_tensors(lambda x: x.expand(slots, *x.shape[1:]).clone(), state)

    def inherit(self, children: Tensor, parents: Tensor) -> None:
        map_tensors(lambda x: x.index_copy_(0, children, x.index_select(0, parents)), self.state)
        self.stale.index_fill_(0, children, True)

    def read(self, slots: Tensor, labels: Tensor) -> Tensor:
        stale = slots[self.stale[slots]]
        if len(stale):
            output, state = self.step(labels[stale], map_tensors(lambda x: x[stale], self.state))
            self._write(stale, output, state)
        return self.output.index_select(0, slots)

    def _write(self, slots: Tensor, output: Tensor, state: State) -> None:
        self._keep(slots, output)
        self.state = map_tensors(lambda x, new: self._stored(x, slots, new.to(x.dtype)), self.state, state)

    def _stored(self, x: Tensor, slots: Tensor, new: Tensor) -> Tensor:
        if x.shape[1:] != new.shape[1:]:
            if not self.ragged:
                raise BadInputError(
                    "the state of this LM grows with each label, and a search that goes frame by frame keeps sequences "
                    "of different lengths: use an n-gram, an LSTM, or a causal LM with another tokenizer"
                )
            sizes = [max(pair) for pair in zip(x.shape[1:], new.shape[1:], strict=True)]
            x, new = _padded(x, sizes), _padded(new, sizes)
        return x.index_copy_(0, slots, new)


class DerivedLane(Outputs):
    """A lane that is a function of another lane's output: an internal LM on its host's prediction network."""

    def __init__(self, host: Lane, rows: Callable[[Tensor], Tensor], blank: int) -> None:
        super().__init__(rows(host.output[:1]), len(host.output), blank)
        self.host, self.rows = host, rows

    def inherit(self, children: Tensor, parents: Tensor) -> None:
        self.stale.index_fill_(0, children, True)

    def read(self, slots: Tensor, labels: Tensor) -> Tensor:
        stale = slots[self.stale[slots]]
        if len(stale):
            self._keep(stale, self.rows(self.host.read(stale, labels)))
        return self.output.index_select(0, slots)


class PrefixPool:
    """Slots for the label sequences of B utterances; slot ids count over all utterances.

    Args:
        lanes: The networks that follow the sequences.
        batch: Utterances.
        slots: Slots for each utterance; at least (labels per frame + 2) × beam.
        device: Where everything is.
    """

    def __init__(self, lanes: Sequence[Outputs], batch: int, slots: int, device: torch.device) -> None:
        self.lanes, self.slots = lanes, slots
        self.hashes = torch.zeros(batch, slots, dtype=torch.long, device=device)
        self.hashes[:, 0] = EMPTY
        self.labels = torch.zeros(batch * slots, dtype=torch.long, device=device)
        self.used = torch.zeros(batch, slots, dtype=torch.long, device=device)
        self.used[:, 0] = 1  # the empty sequence is in use from the start: its slot is not to be taken
        self.clock = torch.ones(1, dtype=torch.long, device=device)
        self.base = torch.arange(batch, device=device)[:, None] * slots

    def touch(self, slots: Tensor) -> None:
        """Marks slots (B, K) as in use, so that they are the last to be taken."""
        self.clock.add_(1)
        self.used.scatter_(1, slots - self.base, self.clock.expand_as(slots))

    def place(self, hashes: Tensor, parents: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """Slots (B, K) for sequences one label longer than their parents' slots (B, K); known ones keep theirs."""
        K = hashes.shape[1]
        same = hashes[:, :, None] == self.hashes[:, None, :]
        known = same.any(-1)
        found = same.to(torch.uint8).argmax(-1)
        self.clock.add_(1)
        now = torch.where(known, self.clock, 0)
        self.used.scatter_reduce_(1, found, now, "amax")  # a known sequence's slot must not be given away
        oldest = self.used.topk(K, dim=1, largest=False).indices
        local = torch.where(known, found, oldest)
        slots = local + self.base
        fresh = valid & ~known
        self.hashes.scatter_(1, local, torch.where(valid, hashes, self.hashes.gather(1, local)))
        children = slots[fresh]
        self.labels[children] = labels[fresh]
        for lane in self.lanes:
            lane.inherit(children, parents[fresh])
        self.clock.add_(1)
        # a place without a sequence must not look used: after some such frames the beam's own slots would be the oldest
        self.used.scatter_reduce_(1, local, torch.where(valid, self.clock, 0), "amax")
        return slots


def is_ragged(scorer: Any) -> bool:
    """Whether a scorer says that its states may be padded (see `Lane`)."""
    return bool(getattr(scorer, "ragged", False))


def _padded(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """x (n, …) with zeros behind, so that its other dimensions have the sizes."""
    out = x.new_zeros(len(x), *sizes)
    out[tuple(slice(size) for size in x.shape)] = x
    return out


def _least(rows: Tensor, blank: int | None) -> Tensor:
    """The least number (n,) of each row (n, V), the blank's left out."""
    if blank is None or rows.shape[1] <= blank:
        return rows.flatten(1).amin(1)
    rows = rows.clone()
    rows[:, blank] = torch.inf
    return rows.amin(1)
