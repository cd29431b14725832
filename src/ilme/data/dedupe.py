"""Which sentences were seen before, in 8 bytes for each different one."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seen", "hash64"]


def hash64(text: str) -> int:
    """64 bits of the text, the same on every machine and in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class Seen:
    """A growing set of 64-bit hashes, asked and extended in batches.

    It is a few sorted arrays, each at least twice as long as the next; two that would break this rule are
    merged. A batch is a binary search in each. Two different sentences share a hash with probability 2⁻⁶⁴:
    among 10⁸ sentences about one in four thousand corpora loses one sentence.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Adds hashes (n,); says for each whether it is new: in no batch before, and not earlier in this one."""
        unique, first = np.unique(hashes, return_index=True)
        fresh = np.ones(len(unique), dtype=bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, unique), len(run) - 1)
            fresh &= run[at] != unique
        new = np.zeros(len(hashes), dtype=bool)
        new[first[fresh]] = True
        if fresh.any():
            self._insert(unique[fresh])
        return new

    def _insert(self, run: NDArray[np.uint64]) -> None:
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            last, before = self._runs.pop(), self._runs.pop()
            merged = np.concatenate([before, last])
            merged.sort(kind="stable")
            self._runs.append(merged)
