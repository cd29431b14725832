"""Where training batches come from, beside `ilme.data.batches`: text for language models, and data in memory.

A source is iterated again and again; each turn is an epoch, or the rest of one after `load_state_dict`. Whole
batches are dealt to the ranks in turn, so that two processes see what one process sees that accumulates two batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.data.batches import Batch
from ilme.data.tokenfile import TokenFile
from ilme.errors import BadInputError

__all__ = ["BatchSource", "MemorySource", "PlannedSource", "TextBatch", "TextSource", "endless", "plan_epoch"]


class BatchSource(Protocol):
    """Batches of this rank, epoch by epoch, and where it stands among them."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, int]: ...

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def endless(source: BatchSource) -> Iterator[Any]:
    """Epoch after epoch."""
    empty = 0  # epochs in a row; one is what remains of an epoch after a checkpoint at its end
    while empty < 2:
        empty += 1
        for batch in source:
            empty = 0
            yield batch
    raise BadInputError("an epoch without a single batch: is there data, and as many batches as processes?")


@dataclass(frozen=True)
class TextBatch:
    """B sentences.

    Attributes:
        ids: Their places in the source.
        labels: (B, U), 0 after each end, without start and end of sentence.
        label_lengths: (B,).
        seconds: 0: there is no audio.
    """

    ids: list[str]
    labels: Tensor
    label_lengths: Tensor
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> TextBatch:
        return replace(self, labels=self.labels.to(device), label_lengths=self.label_lengths.to(device))


def plan_epoch(
    lengths: NDArray[Any],
    budget: float,
    most: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    ascending: bool = False,
) -> list[NDArray[Any]]:
    """The batches of an epoch, as indices: items of like length, at most `budget` with padding and `most` items.

    Lengths are jittered by up to a tenth before they are sorted, so that the batches differ from epoch to epoch.
    With `ascending` the batches stay in the order of their lengths.
    """
    draw = np.random.default_rng([seed, epoch])
    keys = lengths * (1 + 0.1 * draw.random(len(lengths))) if shuffle else lengths
    batches: list[NDArray[Any]] = []
    start, longest = 0, 0.0
    order = np.argsort(keys, kind="stable")
    for i, index in enumerate(order):
        longest_with = max(longest, float(lengths[index]))
        count = i - start + 1
        if count > 1 and (count * longest_with > budget or (most and count > most)):
            batches.append(order[start:i])
            start, longest_with = i, float(lengths[index])
        longest = longest_with
    if len(order):
        batches.append(order[start:])
    if shuffle and not ascending:
        batches = [batches[i] for i in draw.permutation(len(batches))]
    return batches


class PlannedSource(ABC):
    """Base of the sources here: `plan_epoch` over known lengths, dealt to the ranks in turn.

    Args:
        lengths: Length of each item.
        budget: Most length in a batch, padding counted.
        most: Most items in a batch; 0: no limit.
        seed: Decides the order.
        rank: This process, of `world_size`.
        world_size: Processes that train together.
        shuffle: Whether each epoch has its own order.
        short_first: Whether the first epoch goes from short items to long ones, which are easier to align.
    """

    def __init__(
        self,
        lengths: NDArray[Any],
        budget: float,
        most: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        short_first: bool = False,
    ) -> None:
        if not len(lengths):
            raise BadInputError("there is nothing to train on: the source is empty")
        self.lengths, self.budget, self.most, self.seed = lengths, budget, most, seed
        self.rank, self.world_size, self.shuffle, self.short_first = rank, world_size, shuffle, short_first
        self.epoch = self.position = 0

    @abstractmethod
    def load(self, indices: NDArray[Any]) -> Any:
        """The batch of these items."""

    def plan(self) -> list[NDArray[Any]]:
        """The batches of the epoch it is in, over all ranks, as indices."""
        ascending = self.short_first and self.epoch == 0
        return plan_epoch(self.lengths, self.budget, self.most, self.seed, self.epoch, self.shuffle, ascending)

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan()
        while self.position < len(plan):
            turn = plan[self.position : self.position + self.world_size]
            turn += plan[: self.world_size - len(turn)]  # a last, incomplete turn borrows from the start
            self.position += self.world_size
            yield self.load(turn[self.rank % len(turn)])
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "world_size": self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        for name in ("seed", "world_size"):
            if state[name] != getattr(self, name):
                raise BadInputError(
                    f"the checkpoint was made with {name}={state[name]}, this run has {getattr(self, name)}: the "
                    f"batches would differ. Use {name}={state[name]} or start anew"
                )
        self.epoch, self.position = state["epoch"], state["position"]


class TextSource(PlannedSource):
    """Sentences of a token file, or lists of ids, for a language model.

    Args:
        sentences: A token file, or the ids of each sentence without its end.
        tokens: Most tokens in a batch, padding and ends of sentence counted.
        longest: Longer sentences are cut into pieces of this many tokens.
        options: `seed`, `rank`, `world_size`, `shuffle`.
    """

    def __init__(
        self, sentences: TokenFile | Sequence[Sequence[int]], tokens: int = 8192, longest: int = 256, **options: Any
    ) -> None:
        if isinstance(sentences, TokenFile):
            self._ids: NDArray[Any] = sentences.ids
            ends = np.flatnonzero(self._ids == sentences.inventory.eos)
            starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        else:
            sizes = np.array([len(s) for s in sentences], dtype=np.int64)
            self._ids = np.fromiter(chain.from_iterable(sentences), np.int64, int(sizes.sum()))
            ends = sizes.cumsum()
            starts = ends - sizes
        self._starts, self._ends = _cut_long(starts, ends, longest)
        super().__init__(self._ends - self._starts + 1, tokens, **options)

    @property
    def count(self) -> int:
        """Tokens of an epoch, ends of sentence included."""
        return int(self.lengths.sum())

    def load(self, indices: NDArray[Any]) -> TextBatch:
        """Cut out of the ids in one piece: a GPU would wait for a loop over the rows."""
        starts, lengths = self._starts[indices], self._ends[indices] - self._starts[indices]
        at = np.arange(int(lengths.max()))
        rows = self._ids[np.minimum(starts[:, None] + at, len(self._ids) - 1)].astype(np.int64)
        rows[at >= lengths[:, None]] = 0
        return TextBatch(indices.astype(str).tolist(), torch.from_numpy(rows), torch.from_numpy(lengths))


def _cut_long(starts: NDArray[Any], ends: NDArray[Any], longest: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Spans of at most `longest`: a longer one becomes several."""
    pieces = np.maximum(1, -(-(ends - starts) // longest))
    if (pieces == 1).all():
        return starts, ends
    first = np.repeat(starts, pieces)
    within = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    begin = first + within * longest
    return begin, np.minimum(begin + longest, np.repeat(ends, pieces))


class MemorySource(PlannedSource):
    """Utterances whose features and labels are in memory.

    Args:
        features: (T, D) of each utterance.
        labels: Ids of each utterance.
        budget: Most frames in a batch, padding counted.
        frame_seconds: Audio of one frame, in seconds.
        options: Those of `PlannedSource`.
    """

    def __init__(
        self,
        features: Sequence[Tensor],
        labels: Sequence[Sequence[int]],
        budget: float,
        frame_seconds: float = 0.03,
        **options: Any,
    ) -> None:
        if len(features) != len(labels):
            raise BadInputError(f"{len(features)} utterances came with {len(labels)} transcripts")
        self._features, self._labels, self._frame = list(features), list(labels), frame_seconds
        super().__init__(np.array([len(x) for x in features], dtype=np.float64), budget, **options)

    def load(self, indices: NDArray[Any]) -> Batch:
        features = [self._features[int(i)] for i in indices]
        labels = [torch.tensor(self._labels[int(i)], dtype=torch.long) for i in indices]
        sizes = torch.tensor([len(x) for x in features])
        return Batch(
            [str(int(i)) for i in indices],
            pad_sequence(features, batch_first=True),
            sizes,
            pad_sequence(labels, batch_first=True),
            torch.tensor([len(x) for x in labels]),
            ["" for _ in indices],
            float(sizes.sum()) * self._frame,
        )
