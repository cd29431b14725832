"""When each word was said, and how sure the recogniser is of it.

A transducer's label has the frame at which the search emitted it. An attention decoder's labels are put to the frames
that it looked at by dynamic time warping over its attention,

    cost(u, t) = −a_u(t) + min(cost(u−1, t−1), cost(u, t−1), cost(u−1, t))

and a label is said at the frame of its part of the way that it looked at most. A word begins with its first label, and
ends where the next one begins, or before, where it would last longer than words do.

How sure the recogniser is of each word is `ilme.recogniser.confidence`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ilme.protocols import AttendsFrames
from ilme.recogniser.transcripts import Word
from ilme.runtime.state import State
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.tokens import Tokenizer

__all__ = ["label_times", "timed_words", "warp", "words_of_labels"]

LONGEST = 1.0  # seconds of a word, and what each letter of it beyond the tenth may add
PER_LETTER = 0.1


def timed_words(
    model: Any, memory: State, seconds: float, nbest: NBest, sure: Sequence[float], tokenizer: Tokenizer
) -> list[Word]:
    """The words of the best hypothesis, from the beginning of the utterance; none where the model cannot tell.

    Args:
        model: The model.
        memory: What its search takes, of this one utterance (B = 1).
        seconds: How long it is.
        nbest: The list.
        sure: Confidence of each word of its first hypothesis.
        tokenizer: Labels to text.
    """
    best = nbest[0]
    places, words = words_of_labels(best.tokens, tokenizer)
    times = label_times(model, memory, seconds, best)
    if times is None or not words:
        return []
    starts = [math.inf] * len(words)
    for place, time in zip(places, times, strict=False):
        starts[place] = min(starts[place], time)
    found = []
    for k, word in enumerate(words):
        following = starts[k + 1] if k + 1 < len(words) else times[-1]
        longest = LONGEST + PER_LETTER * max(0, len(word) - 10)
        end = min(max(following, starts[k]), starts[k] + longest, seconds)
        found.append(Word(round(min(starts[k], seconds), 3), round(end, 3), word, round(sure[k], 4)))
    return found


def words_of_labels(labels: Sequence[int], tokenizer: Tokenizer) -> tuple[list[int], list[str]]:
    """The word that each label belongs to, and the words; a label without letters belongs to the next one's word."""
    words = tokenizer.decode(list(labels)).split()
    ends = np.cumsum([len(w) for w in words])
    places, before = [], 0
    for k in range(len(labels)):
        places.append(min(int(np.searchsorted(ends, before, side="right")), max(len(words) - 1, 0)))
        written = "".join(tokenizer.decode(list(labels[: k + 1])).replace("\ufffd", "").split())
        before = max(before, len(written))
    return places, words


def label_times(model: Any, memory: State, seconds: float, hypothesis: Hypothesis) -> list[float] | None:
    """When each label is said, and the end of all, in seconds; None where the model has nothing to tell it by."""
    if hypothesis.times is not None:
        _, lengths = memory
        frame = seconds / max(int(lengths[0]), 1)
        return [*(t * frame for t in hypothesis.times), seconds]
    if not isinstance(model, AttendsFrames) or not hypothesis.tokens:
        return None
    labels = torch.tensor(hypothesis.tokens, device=model.device)
    weights, frame = model.attended(labels, memory, seconds)
    rows = weights.double().cpu().numpy()
    parts = itertools.pairwise([*warp(rows), rows.shape[1]])
    looked = [first + int(rows[u, first : max(last, first + 1)].argmax()) for u, (first, last) in enumerate(parts)]
    return [*(t * frame for t in looked[:-1]), seconds]


def warp(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first frame of each row of attention (U, T) on the cheapest way through it, from corner to corner.

    The three ways to a cell come from the two diagonals before its own, so a whole diagonal is computed at once.
    """
    U, T = weights.shape
    cost = np.full((U + 1, T + 1), np.inf)
    cost[0, 0] = 0.0
    for d in range(2, U + T + 1):
        u = np.arange(max(1, d - T), min(U, d - 1) + 1)
        t = d - u
        ways = np.stack([cost[u - 1, t - 1], cost[u, t - 1], cost[u - 1, t]])
        cost[u, t] = ways.min(0) - weights[u - 1, t - 1]
    first = np.zeros(U, dtype=np.int64)
    u, t = U, T
    while u > 0 and t > 0:
        first[u - 1] = t - 1
        u, t = min(((u - 1, t - 1), (u, t - 1), (u - 1, t)), key=lambda c: cost[c])
    return first
