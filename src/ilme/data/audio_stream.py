"""A file of any length as mono blocks at the wanted rate: never more of it in memory than two blocks.

    for block in AudioStream("three-hours.mp3", 16_000):
        ...

Together the blocks are what `load_audio` gives, to rounding. The file is read twice: first to see that all of it can be
used, so that a file that is damaged near its end is refused before work is spent on its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ilme.data.audio import (
    BLOCK,
    AudioError,
    Samples,
    audio_file,
    check_finite,
    cut_off,
    mono,
    read_blocks,
    resample,
    resampling_ratio,
)
from ilme.errors import BadInputError

__all__ = ["AudioStream"]

SECONDS = 30.0


class AudioStream:
    """The blocks of one file; it may be iterated over several times.

    Args:
        path: The file.
        rate: Samples a second wanted.
        block: Seconds of a block; the last one is shorter, and so are those of files with very many channels.

    Attributes:
        seconds: How long the file is.
    """

    def __init__(self, path: str | Path, rate: int = 16_000, block: float = SECONDS) -> None:
        if rate <= 0 or block <= 0:
            raise BadInputError(f"rate and block must be positive, not {rate} and {block}")
        self.path, self.rate = Path(path), rate
        with audio_file(self.path) as file:
            self.source_rate = int(file.samplerate)
            promised, header, channels = int(file.frames), str(file.extra_info), int(file.channels)
        self._up, self._down = resampling_ratio(self.source_rate, rate)
        # The filter of `resample` reaches 10·max(up, down) samples of the signal at `up` times the rate to each side.
        # Blocks, and what they borrow from their neighbours, begin where input and output samples coincide.
        self._reach = math.ceil((10 * max(self._up, self._down) // self._up + 1) / self._down) * self._down
        most = min(int(block * self.source_rate), BLOCK // channels)
        self._block = max(most // self._down * self._down, self._reach)
        self.seconds = self._check(promised, header) / self.source_rate

    def _check(self, promised: int, header: str) -> int:
        """Samples of the whole file; an error if it is empty, cut off, or holds what is no number."""
        found = 0
        for samples in self._read():
            check_finite(samples, str(self.path), f" after {found / self.source_rate:.1f} s")
            found += len(samples)
        missing = cut_off(self.path, promised, found, header)
        if missing:
            raise AudioError(f"{self.path} is cut off: {missing}. Fetch or convert it again.", "truncated")
        if not found:
            raise AudioError(f"{self.path} holds no samples", "empty")
        return found

    def _read(self) -> Iterator[Samples]:
        """Mono blocks at the file's own rate."""
        with audio_file(self.path) as file:
            for samples in read_blocks(file, self.path, self._block):
                yield mono(samples, axis=1)

    def __iter__(self) -> Iterator[Samples]:
        if self.source_rate == self.rate:
            yield from self._read()
            return
        blocks = self._read()
        before, current = np.zeros(0, np.float32), next(blocks, np.zeros(0, np.float32))
        while len(current):
            after = next(blocks, np.zeros(0, np.float32))
            whole = np.concatenate([before, current, after[: self._reach]])
            made = resample(whole, self.source_rate, self.rate)
            start = len(before) * self._up // self._down
            end = start + math.ceil(len(current) * self._up / self._down)
            yield made[start:end].copy()
            before, current = np.concatenate([before, current])[-self._reach :], after
