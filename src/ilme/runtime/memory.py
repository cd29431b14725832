"""Memory that the C library keeps for later, given back to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Returns free memory to the system, where the C library can (glibc).

    Batches of many shapes leave holes of many sizes: without this a process keeps the sum of them.
    """
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], int]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return lambda pad: 0
