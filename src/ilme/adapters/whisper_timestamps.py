"""Whisper's time stamps: which labels may follow which, scorers that read past them, and the segments they make.

With time stamps a transcript is  <|0.00|> text <|2.40|> <|2.40|> text <|5.12|>  and so on. The rules are those of
openai-whisper. Time stamps are scored by the model alone: to an LM they are not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import TokenScorer
from ilme.runtime.state import State, map_tensors
from ilme.tokens import Tokens

__all__ = ["STEP", "ReadsPastStamps", "Stamped", "TimestampRules", "stamped_segments"]

STEP = 0.02  # seconds from one time stamp to the next
LATEST_START = 50  # the first time stamp is at most this many steps in
NOTHING = -1


@dataclass(frozen=True)
class TimestampRules:
    """Implements `ilme.adapters.hf.LabelRules`. The state (n, 3) is the last label, the one before, the last stamp.

    Attributes:
        first: Id of <|0.00|>; all later ids are time stamps.
        eos: Id of the end, which counts as neither text nor stamp.
    """

    first: int
    eos: int

    def start(self, n: int) -> Tensor:
        return torch.full((n, 3), NOTHING)

    def advance(self, labels: Tensor, state: Tensor) -> Tensor:
        stamp = torch.where(labels >= self.first, labels, state[:, 2])
        return torch.stack([labels, state[:, 0], stamp], 1)

    def apply(self, logits: Tensor, state: Tensor) -> Tensor:
        last, before, latest = state.unbind(1)
        empty = last == NOTHING
        after_stamp = last >= self.first
        pair = after_stamp & ((before >= self.first) | (before == NOTHING))  # a segment has just begun
        closed = after_stamp & ~pair  # a segment has just ended: the next begins, or all ends
        units = torch.arange(logits.shape[1], device=logits.device)
        is_stamp = units >= self.first
        is_text = ~is_stamp & (units != self.eos)
        forbidden = pair[:, None] & is_stamp
        forbidden |= closed[:, None] & is_text
        # Time does not run backwards, and a segment is not empty.
        floor = torch.where(latest == NOTHING, self.first, latest + (~closed).long())
        forbidden |= is_stamp & (units < floor[:, None])
        forbidden |= empty[:, None] & (~is_stamp | (units > self.first + LATEST_START))
        logits = logits.masked_fill(forbidden, -torch.inf)
        # If a time stamp, taken together, is likelier than any text, it is a time stamp.
        log_probabilities = logits.log_softmax(-1)
        stamps = log_probabilities[:, self.first :].logsumexp(-1)
        likelier = stamps > log_probabilities[:, : self.first].amax(-1)
        return logits.masked_fill(likelier[:, None] & ~is_stamp, -torch.inf)


class Stamped:
    """An internal LM that hears the time stamps, as its model does, but does not score them."""

    def __init__(self, scorer: TokenScorer, first: int) -> None:
        self.scorer, self.first = scorer, first
        self.tokens: Tokens = scorer.tokens
        self.device: torch.device = scorer.device

    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.scorer.start(n)
        return _unscored(rows, self.first), state

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        rows, state = self.scorer.score(labels, state)
        return _unscored(rows, self.first), state

    def finish(self, rows: Tensor) -> Tensor:
        return self.scorer.finish(rows)


class ReadsPastStamps(Stamped):
    """An LM to which time stamps are not there: they are not scored and do not change its state."""

    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.scorer.start(n)
        return _unscored(rows, self.first), (rows, state)

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        old_rows, old = state
        stamp = labels >= self.first
        eos = self.tokens.eos
        harmless = torch.where(stamp, labels.new_full((), 0 if eos is None else eos), labels)
        new_rows, new = self.scorer.score(harmless, old)

        def keep(before: Tensor, after: Tensor) -> Tensor:
            if before.shape != after.shape:
                raise BadInputError("this LM's state grows with each label; it cannot be used with time stamps")
            return torch.where(stamp.view(-1, *[1] * (after.dim() - 1)), before, after)

        rows = keep(old_rows, new_rows)
        return _unscored(rows, self.first), (rows, map_tensors(keep, old, new))


def _unscored(rows: Tensor, first: int) -> Tensor:
    rows = rows.clone()
    rows[:, first:] = 0.0
    return rows


def stamped_segments(labels: list[int], first: int, end: float) -> list[tuple[float, float, list[int]]]:
    """(start, end, labels of text) of each segment in seconds; one that is not closed runs to `end`."""
    segments: list[tuple[float, float, list[int]]] = []
    start, text = 0.0, []
    for label in labels:
        if label < first:
            text.append(label)
            continue
        at = (label - first) * STEP
        if text:
            segments.append((start, min(at, end), text))
            text = []
        start = at
    if text:
        segments.append((min(start, end), end, text))
    return segments
