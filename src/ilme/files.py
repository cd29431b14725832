"""Files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ilme.errors import CheckpointError

__all__ = ["write_atomically"]


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
