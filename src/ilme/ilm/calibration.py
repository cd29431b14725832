"""A little speech, over which internal LMs are averaged or from whose transcripts they are learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ilme.errors import BadInputError
from ilme.protocols import InternalLM, Samples
from ilme.runtime.state import State

__all__ = ["Calibration", "Estimator", "Needs", "whole_window"]

Needs = Literal["nothing", "speech", "transcripts"]


@dataclass(frozen=True)
class Calibration:
    """What an estimator may look at; transcripts may be the model's own.

    Attributes:
        encoded: What the encoder made of each utterance, without padding: encoder states (T, D), a transducer's
            acoustic terms (T, J), or the memory (B = 1) of an attention decoder that keeps nothing smaller.
        labels: Transcripts in the model's tokens: of the same utterances, if there are any.
        learning: How long and how the internal LM `learned` is learned: `LearnedVectorOptions` for our own networks,
            `LearnedContextOptions` for Transformers; None as they come.
    """

    encoded: Sequence[State] = ()
    labels: Sequence[Sequence[int]] = ()
    learning: Any = None

    def __post_init__(self) -> None:
        if len(self.encoded) and len(self.encoded) != len(self.labels):
            raise BadInputError(f"{len(self.encoded)} utterances but {len(self.labels)} transcripts")


@dataclass(frozen=True)
class Estimator:
    """One way to take the acoustics away.

    Attributes:
        make: The internal LM of a model.
        needs: Whether it takes speech, with the transcripts of it; transcripts alone; or neither.
    """

    make: Callable[[Any, Calibration], InternalLM]
    needs: Needs = "nothing"


def whole_window(model: Any, samples: Samples, rate: int) -> Samples:
    """The samples with the silence that fills the window of a model with one of a fixed length.

    What is averaged frame by frame must have every frame; for the model the silence is nothing new.
    """
    if not getattr(model, "fixed_length", False):
        return samples
    missing = int(model.window * rate) - len(samples)
    return np.pad(samples, (0, max(0, missing)))
