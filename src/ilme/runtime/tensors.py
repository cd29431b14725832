"""Tensors on disk: safetensors with a header of texts. Written whole or not at all; pickle is never loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.runtime.files import write_atomically

__all__ = ["read_header", "read_tensors", "write_tensors"]


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; what is wrong with any other file, in words."""
    with _opened(file) as reader:
        return {name: reader.get_tensor(name) for name in reader.keys()}, reader.metadata() or {}  # noqa: SIM118


def read_header(file: Path) -> dict[str, str]:
    """The header of a safetensors file alone, without its tensors."""
    with _opened(file) as reader:
        return reader.metadata() or {}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        with safe_open(file, framework="pt") as reader:
            yield reader
    except (SafetensorError, OSError) as error:
        with file.open("rb") as stream:
            start = stream.read(4)
        if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
            raise CheckpointError(
                f"{file} is a pickle (.pt/.bin), which can run code and is never loaded; save it as safetensors"
            ) from error
        size = file.stat().st_size
        raise CheckpointError(
            f"{file} ({size:,} bytes) is not a whole safetensors file: {error}; copy it again or use another checkpoint"
        ) from error


def write_tensors(file: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    write_atomically(file, save({name: value.contiguous().cpu() for name, value in tensors.items()}, metadata=header))
