"""Audio that comes in pieces: at another rate, and cut into turns where somebody begins and ceases to speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ilme.data.audio import Samples, resample, resampling_ratio
from ilme.serve.voice import CHUNK, RATE

__all__ = ["Resampler", "TurnOptions", "Turns"]

BEGINS = 2  # chunks in a row that are the beginning of speech
HYSTERESIS = 0.15  # by which the probability must fall below the threshold before speech may end
LOWEST = 0.01  # probability below which nobody speaks, however low the threshold is


class Resampler:
    """`resample` for audio that comes in pieces: together they are what the whole gives.

    Args:
        source: Samples a second that come.
        rate: That are wanted.
    """

    def __init__(self, source: int, rate: int) -> None:
        self.source, self.rate = source, rate
        self._up, self._down = resampling_ratio(source, rate)
        reach = 10 * max(self._up, self._down) // self._up + 1  # of the filter, to each side
        self._reach = -(-reach // self._down) * self._down
        self._before = self._left = np.zeros(0, dtype=np.float32)

    def feed(self, samples: Samples, last: bool = False) -> Samples:
        """What is certain of the audio so far; the last few samples wait for what follows them."""
        if self.source == self.rate:
            return samples
        self._left = np.concatenate([self._left, samples])
        if last:
            self._left = np.pad(self._left, (0, self._reach + -len(self._left) % self._down))
        whole = (len(self._left) - self._reach) // self._down * self._down
        if whole <= 0:
            return np.zeros(0, dtype=np.float32)
        read = np.concatenate([self._before, self._left[: whole + self._reach]])
        start = len(self._before) * self._up // self._down
        made = resample(read, self.source, self.rate)[start : start + whole * self._up // self._down]
        self._before = np.concatenate([self._before, self._left[:whole]])[-self._reach :]
        self._left = self._left[whole:]
        return made


@dataclass(frozen=True)
class TurnOptions:
    """Where a turn begins and ends.

    Attributes:
        threshold: Probability from which it is speech.
        prefix: Seconds before the beginning that belong to it.
        silence: Seconds without speech that end it.
    """

    threshold: float = 0.5
    prefix: float = 0.3
    silence: float = 0.5


class Voice(Protocol):
    """The probability of speech of each chunk."""

    def probabilities(self, samples: Samples) -> Samples: ...


class Turns:
    """Finds turns in audio of 16 kHz that comes in pieces.

    Args:
        voice: Says what is speech.
        options: Where turns begin and end.
    """

    def __init__(self, voice: Voice, options: TurnOptions | None = None) -> None:
        self.voice, self.options = voice, options or TurnOptions()
        self.heard = 0  # samples that were judged
        self.speaking = False
        self._left = np.zeros(0, dtype=np.float32)
        self._loud = self._quiet = 0

    def begin_again(self) -> None:
        """Takes speech that goes on for a new beginning, as after a turn that was cut."""
        self.speaking = False
        self._loud = self._quiet = 0

    def feed(self, samples: Samples) -> list[tuple[str, int]]:
        """What begins or ends in the samples: ("start" or "stop", at which sample from the beginning of all)."""
        self._left = np.concatenate([self._left, samples])
        whole = len(self._left) // CHUNK * CHUNK
        if not whole:
            return []
        chunks, self._left = self._left[:whole], self._left[whole:]
        found = []
        loud = max(self.options.threshold, LOWEST)
        quiet = max(loud - HYSTERESIS, LOWEST)
        for probability in self.voice.probabilities(chunks):
            self.heard += CHUNK
            self._loud = self._loud + 1 if probability >= loud else 0
            self._quiet = self._quiet + 1 if probability < quiet else 0
            if not self.speaking and self._loud >= BEGINS:
                self.speaking = True
                start = self.heard - self._loud * CHUNK - int(self.options.prefix * RATE)
                found.append(("start", max(0, start)))
            elif self.speaking and self._quiet and self._quiet * CHUNK >= self.options.silence * RATE:
                self.speaking = False
                found.append(("stop", self.heard))
        return found
