"""Tensors on disk: safetensors with a header of texts. Written whole or not at all; pickle is never loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.runtime.files import write_atomically

__all__ = ["check_finite", "has_entry", "read_header", "read_shapes", "read_tensors", "write_tensors"]


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; what is wrong with any other file, in words."""
    with _opened(file) as reader:
        return {name: reader.get_tensor(name) for name in reader.keys()}, reader.metadata() or {}  # noqa: SIM118


def read_header(file: Path) -> dict[str, str]:
    """The header of a safetensors file alone, without its tensors."""
    with _opened(file) as reader:
        return reader.metadata() or {}


def has_entry(file: Path, entry: str) -> bool:
    """Whether it is a safetensors file with this entry in its header."""
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        return entry in read_header(file)
    except CheckpointError:
        return False


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, from its header alone."""
    with _opened(file) as reader:
        return {name: tuple(reader.get_slice(name).get_shape()) for name in reader.keys()}  # noqa: SIM118


def check_finite(file: object, tensors: Mapping[str, Tensor]) -> None:
    """Refuses weights with NaN or infinity in them, which would make every transcript empty."""
    for name, value in tensors.items():
        # A sum with NaN or infinity in it is never finite: one pass, and no second tensor unless there is a doubt.
        if not value.is_floating_point() or bool(value.sum(dtype=torch.float64).isfinite()):
            continue
        bad = int((~value.isfinite()).sum())
        if bad:
            raise CheckpointError(
                f"{file} is damaged: {bad:,} of the {value.numel():,} numbers of {name} are NaN or infinite; "
                "copy it again or use another checkpoint"
            )


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        if not file.is_file():
            raise CheckpointError(f"{file} {'is not a regular file' if file.exists() else 'does not exist'}")
        with safe_open(file, framework="pt") as reader:
            yield reader
    except PermissionError as error:
        raise CheckpointError(f"{file} may not be read by this user") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_why_not(file, error)) from error


def _why_not(file: Path, error: Exception) -> str:
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
        size = file.stat().st_size
    except OSError as problem:
        return f"{file} cannot be read: {problem.strerror or problem}"
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        return f"{file} is a pickle (.pt/.bin), which can run code and is never loaded; save it as safetensors"
    return f"{file} ({size:,} bytes) is not a whole safetensors file: {error}; copy it again or use another checkpoint"


def write_tensors(file: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    write_atomically(file, save({name: value.contiguous().cpu() for name, value in tensors.items()}, metadata=header))
