"""Lines about the work, which are never worth the work itself."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["tell"]


def tell(text: str, stream: TextIO | None = None) -> None:
    """Prints a line on stderr, or on `stream`, at once; where nobody can read it, it is dropped and the work goes on.

    What a broken stream still holds fails when the command ends, which then says so.
    """
    with suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)
