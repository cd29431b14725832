"""Which audio files names, folders and globs stand for, and where below an output folder each belongs."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ilme.data.corpora import AUDIO_SUFFIXES
from ilme.errors import BadInputError

__all__ = ["AudioFile", "find_audio"]


@dataclass(frozen=True)
class AudioFile:
    """One file to transcribe.

    Attributes:
        path: Where it is.
        name: Its path below the files' deepest common folder, without the suffix unless two files differ in it alone.
    """

    path: Path
    name: str


def find_audio(patterns: Sequence[str | Path]) -> list[AudioFile]:
    """The files that names, folders and globs (`**` included) stand for, in their order, none twice.

    A file that is named and does not exist is among them: it fails on its own when it is read.

    Raises:
        BadInputError: A folder or a glob without an audio file.
    """
    found: dict[Path, None] = {}
    for pattern in map(str, patterns):
        found.update(dict.fromkeys(_matches(pattern)))
    paths = list(found)
    if not paths:
        raise BadInputError("no audio was given: name files, folders or globs")
    whole = [Path(os.path.abspath(p)) for p in paths]  # noqa: PTH100  (links stay as they were named)
    root = Path(os.path.commonpath([p.parent for p in whole]))
    names = [p.relative_to(root) for p in whole]
    shared = Counter(n.with_suffix("") for n in names)
    return [
        AudioFile(path, (n if shared[n.with_suffix("")] > 1 else n.with_suffix("")).as_posix())
        for path, n in zip(paths, names, strict=True)
    ]


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES and p.is_file())
        if not files:
            raise BadInputError(f"{path} holds no audio file ({', '.join(AUDIO_SUFFIXES)})")
        return files
    if path.exists() or not glob.has_magic(pattern):
        return [path]
    files = sorted(p for p in map(Path, glob.iglob(pattern, recursive=True)) if p.is_file())  # noqa: PTH207
    if not files:
        raise BadInputError(f"no file matches {pattern}")
    return files
