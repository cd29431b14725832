"""Memory that libraries keep for later: the C library's is given back to the system, oneDNN's has a bound."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

__all__ = ["bound_kernels", "give_back_memory"]

KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


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


def bound_kernels(count: int = 128) -> None:
    """Keeps fewer of the kernels that oneDNN makes for each shape of a matrix; to be called before the first product.

    It would keep 1,024 of them, and requests come in ever new lengths: memory grows for thousands of requests. The
    variable ONEDNN_PRIMITIVE_CACHE_CAPACITY goes before this.
    """
    os.environ.setdefault(KERNELS, str(count))
