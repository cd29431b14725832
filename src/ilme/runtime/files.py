"""Files that are whole or not there, and how to tell two apart."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from ilme.errors import CheckpointError

__all__ = ["short_hash", "weights_file", "write_atomically"]

EDGE = 1 << 20  # bytes at either end of a file that `short_hash` reads


def write_atomically(file: Path, content: bytes) -> None:
    """Puts `content` at `file` as a whole or not at all, readable by whom the umask says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        kept = " The file that was there is untouched." if file.exists() else ""
        raise CheckpointError(f"could not write {file}: {error.strerror or error}.{kept}") from error


def weights_file(path: Path) -> Path:
    """The file of a checkpoint or an LM, which may be a folder that holds it."""
    return path / "model.safetensors" if path.is_dir() else path


def short_hash(file: Path) -> str:
    """A hash of a file's size and of its first and last megabyte: quick, and another training gives another."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(EDGE)
        stream.seek(max(0, size - EDGE))
        last = stream.read(EDGE)
    return hashlib.sha256(f"{size}".encode() + first + last).hexdigest()[:16]
