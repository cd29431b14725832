"""What a CUDA graph needs while it is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside.

    A graph that is no longer used may hang in a cycle of references. Destroying it while another one is recorded makes
    CUDA give that recording up, and the collector may run at any time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
