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
from typing import Any

import numpy as np

from ilme.data.audio import AudioError, Samples, audio_file, cut_off, resample
from ilme.errors import BadInputError

__all__ = ["AudioStream"]

BLOCK = 30.0  # seconds


class AudioStream:
    """The blocks of one file; it may be iterated over several times.

    Args:
        path: The file.
        rate: Samples a second wanted.
        block: Seconds of a block; the last one is shorter.

    Attributes:
        seconds: How long the file is.
    """

    def __init__(self, path: str | Path, rate: int = 16_000, block: float = BLOCK) -> None:
        if rate <= 0 or block <= 0:
            raise BadInputError(f"rate and block must be positive, not {rate} and {block}")
        self.path, self.rate = Path(path), rate
        with audio_file(self.path) as file:
            self.source_rate = int(file.samplerate)
            promised, header = int(file.frames), str(file.extra_info)
        common = math.gcd(self.source_rate, rate)
        self._up, self._down = rate // common, self.source_rate // common
        # The filter of `resample` reaches 10·max(up, down) samples of the signal at `up` times the rate to each side.
        # Blocks, and what they borrow from their neighbours, begin where input and output samples coincide.
        self._reach = math.ceil((10 * max(self._up, self._down) // self._up + 1) / self._down) * self._down
        self._block = max(int(block * self.source_rate) // self._down * self._down, self._reach)
        self.seconds = self._check(promised, header) / self.source_rate

    def _check(self, promised: int, header: str) -> int:
        """Samples of the whole file; an error if it is empty, cut off, or holds what is no number."""
        found = 0
        for samples in self._read():
            if not np.isfinite(samples).all():
                raise AudioError(
                    f"{self.path} holds NaN or infinite samples after {found / self.source_rate:.1f} s", "not finite"
                )
            found += len(samples)
        missing = cut_off(self.path, promised, found, header)
        if missing:
            raise AudioError(f"{self.path} is cut off: {missing}. Fetch or convert it again.", "truncated")
        if not found:
            raise AudioError(f"{self.path} holds no samples", "empty")
        return found

    def _read(self) -> Iterator[Samples]:
        """Mono blocks at the file's own rate."""
        import soundfile

        with audio_file(self.path) as file:
            while True:
                try:
                    samples: Any = file.read(self._block, dtype="float32", always_2d=True)
                except (soundfile.SoundFileError, RuntimeError) as error:
                    raise AudioError(f"{self.path} breaks off or is damaged: {error}", "truncated") from error
                if not len(samples):
                    return
                yield samples[:, 0].copy() if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)

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
