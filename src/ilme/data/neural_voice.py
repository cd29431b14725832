"""A neural voice from the `hibari-tts` wheel: one speaker, far closer to people than espeak-ng, at a hundredth of the
time that the speech lasts. No download, no GPU.

One speaker teaches little about speakers. Played faster or slower than it was made, her voice becomes another: pitch
and formants move together, and the pace that she is asked for makes up for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import MissingExtraError

__all__ = ["NaturalVoice", "draw_natural_voice", "speak_naturally"]

RATE_HZ = 24_000  # what the network makes
GRID_HZ = 800  # rates at which it is played are multiples of this: the ratio to 16 kHz then has small terms
PITCH, PACE = (0.8, 1.15), (0.8, 1.3)


@dataclass(frozen=True)
class NaturalVoice:
    """How to speak.

    Attributes:
        rate: Samples a second at which the speech is played; 24,000 is the speaker's own voice, less is a deeper one.
        pace: 1 is the speaker's own, as it is heard.
        seed: Seed of the breath in it.
    """

    rate: int = RATE_HZ
    pace: float = 1.0
    seed: int = 0

    @property
    def pitch(self) -> float:
        """1 is the speaker's own."""
        return round(self.rate / RATE_HZ, 3)

    @property
    def name(self) -> str:
        return f"natural@{self.pitch:.3f}x{self.pace:.2f}"


def draw_natural_voice(draw: np.random.Generator) -> NaturalVoice:
    low, high = (round(RATE_HZ * x / GRID_HZ) for x in PITCH)
    rate, pace = GRID_HZ * int(draw.integers(low, high + 1)), round(float(draw.uniform(*PACE)), 2)
    return NaturalVoice(rate, pace, int(draw.integers(2**31)))


def speak_naturally(text: str, voice: NaturalVoice) -> NDArray[np.float32]:
    """Samples in −1..1 at `voice.rate` a second; none for a text without anything to say."""
    made: NDArray[np.float32] = _network()(text, speed=voice.pace * RATE_HZ / voice.rate, seed=voice.seed)
    return made


@cache
def _network() -> Any:
    try:
        from hibari import Hibari
    except ImportError as error:
        raise MissingExtraError("hibari-tts", "natural") from error
    return Hibari(threads=1)
