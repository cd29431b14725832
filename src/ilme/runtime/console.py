"""Lines about the work, which are never worth the work itself."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["rich_console", "tell"]


def tell(text: str, stream: TextIO | None = None) -> None:
    """Prints a line on stderr, or on `stream`, at once; where nobody can read it, it is dropped and the work goes on.

    What a broken stream still holds fails when the command ends, which then says so.
    """
    with suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


def rich_console(stderr: bool = False) -> Console:
    """A console of rich that leaves it to the command what happens where nobody reads: rich would end the process.

    What goes to stderr is about the work: it is dropped from then on, and the work goes on.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            if not stderr:
                raise  # the BrokenPipeError at which rich calls this
            self.quiet = True

    return Lasting(stderr=stderr)
