"""A file of numbers that somebody else wrote: nothing is read, or allocated for, beyond what it holds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ilme.errors import CheckpointError

__all__ = ["BinaryFile"]


class BinaryFile:
    """Reads a file from its start to its end; what it lacks is an error that names it."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self._stream = stream
        self._size = path.stat().st_size

    @classmethod
    @contextmanager
    def opened(cls, path: Path, what: str) -> Iterator[BinaryFile]:
        """The file, open; `what` says what it should be."""
        if not path.is_file():
            raise CheckpointError(f"{path} is {'a folder' if path.is_dir() else 'no file'}; name {what}")
        with path.open("rb") as stream:
            yield cls(path, stream)

    @property
    def left(self) -> int:
        """Bytes that have not been read."""
        return self._size - self._stream.tell()

    def read(self, size: int) -> bytes:
        if size < 0:
            raise CheckpointError(f"{self.path} is damaged: it gives a part {size} bytes")
        if size > self.left:  # asked before anything is allocated
            raise CheckpointError(f"{self.path} is cut off or damaged: {size} bytes wanted, {self.left} left")
        return self._stream.read(size)

    def numbers(self, format: str) -> tuple[Any, ...]:
        """Numbers in a format of `struct`."""
        return struct.unpack(format, self.read(struct.calcsize(format)))

    def text(self, size: int) -> str:
        """So many bytes as text."""
        try:
            return self.read(size).decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.path} is damaged: the name of a tensor is no text") from None
