"""What a command writes must not be what it reads: that would be lost, unasked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ilme.errors import UsageError
from ilme.runtime.files import weights_file

__all__ = ["spare_inputs"]


def spare_inputs(out: str | Path, inputs: Iterable[str | Path]) -> None:
    """An error if `out` is one of the files that are read, by any name; of a checkpoint's folder its weights count."""
    target = weights_file(Path(out))
    for name in map(str, inputs):
        given = weights_file(Path(name))
        if target.is_file() and given.is_file() and target.samefile(given):
            raise UsageError(f"{out} is one of the files that are read, and would be lost: write to another place")
