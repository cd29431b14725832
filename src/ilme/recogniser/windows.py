"""Cuts long recordings into windows that a model can take, at the quietest places, and finds silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ilme.data.audio import Samples
from ilme.errors import BadInputError

__all__ = ["Window", "cut_windows", "is_silent", "stream_windows"]

FRAME = 0.02  # seconds over which loudness is measured
QUIET = 10 ** (-65 / 20)  # −65 dB of full scale: below this nothing was recorded


@dataclass(frozen=True)
class Window:
    """Samples start … end of a recording, in seconds."""

    start: float
    end: float
    samples: Samples


def cut_windows(samples: Samples, rate: int, longest: float, earliest: float = 0.5) -> list[Window]:
    """Windows of at most `longest` seconds that together are the whole recording.

    Each cut is in the middle of the quietest 0.3 s between `earliest`·longest and longest after the last one, so
    that hardly any word is cut in two.
    """
    return list(stream_windows([samples], rate, longest, earliest))


def stream_windows(blocks: Iterable[Samples], rate: int, longest: float, earliest: float = 0.5) -> Iterator[Window]:
    """The windows of `cut_windows`, of a recording that comes in blocks: a window is made when its end is there."""
    if longest <= 0 or not 0 < earliest < 1:
        raise BadInputError(f"windows need a length, got longest={longest} and earliest={earliest}")
    limit = max(int(longest * rate), 1)
    left: Samples = np.zeros(0, dtype=np.float32)
    start = 0  # of what is left, in samples of the recording
    for block in blocks:
        left = np.concatenate([left, block]) if len(left) else block
        at = 0
        while len(left) - at > limit:
            cut = at + _quiet_place(left[at : at + limit], rate, earliest)
            yield Window((start + at) / rate, (start + cut) / rate, left[at:cut].copy())
            at = cut
        start, left = start + at, left[at:]
    yield Window(start / rate, (start + len(left)) / rate, left)


def _quiet_place(samples: Samples, rate: int, earliest: float) -> int:
    """The middle of the quietest 0.3 s after `earliest` of the samples; their end if they are too short for a frame."""
    hop, low = int(FRAME * rate), int(len(samples) * earliest)
    whole = (len(samples) - low) // hop * hop if hop else 0  # frames that are cut off would seem quiet
    if not whole:
        return len(samples)
    energy = _energy(samples[low : low + whole], hop)
    wide = min(15, len(energy))
    smooth = np.convolve(energy, np.ones(wide), mode="valid")
    return low + (int(np.argmin(smooth)) + wide // 2) * hop + hop // 2


def is_silent(samples: Samples) -> bool:
    """Whether even the loudest 20 ms are below −65 dB of full scale."""
    if samples.size == 0:
        return True
    return bool(_energy(samples, 320).max() < QUIET**2)


def _energy(samples: Samples, hop: int) -> NDArray[np.float64]:
    """Mean square of each frame of `hop` samples; the last, shorter one counts too."""
    padded = np.pad(samples.astype(np.float64), (0, -len(samples) % hop))
    energy: NDArray[np.float64] = np.square(padded).reshape(-1, hop).mean(1)
    return energy
