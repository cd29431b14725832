"""Which audio files names, folders and globs stand for, and where below an output folder each belongs."""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
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
        name: Its path below the folder or the glob that it was found by, its own name if it was named itself; without
            the suffix, unless two files differ in it alone. What else is transcribed does not change it.
    """

    path: Path
    name: str


def find_audio(patterns: Sequence[str | Path]) -> list[AudioFile]:
    """The files that names, folders and globs (`**` included) stand for, in their order, none twice.

    What cannot be read, or stands for nothing, is among them under its own name: it fails when it is read, and costs no
    other file its transcript.

    Raises:
        BadInputError: Nothing was named, or folders and globs alone without one audio file.
    """
    matches = {pattern: _matches(pattern) for pattern in map(str, patterns)}
    if not any(matches.values()):
        what = "no audio was given: name files, folders or globs"
        raise BadInputError("; ".join(map(_nothing, matches)) or what)
    whole = dict[Path, tuple[Path, Path]]()  # as it was named, and below what, by its place
    for pattern, found in matches.items():
        for path in found or [Path(pattern)]:
            place = Path(os.path.abspath(path))  # noqa: PTH100  (links keep their names)
            below = path.relative_to(_root(pattern)) if found else Path(place.name or "root")
            whole.setdefault(place, (path, below))
    names = list(dict.fromkeys(below for _, below in whole.values()))
    short = _different(names)
    return [AudioFile(path, short[below].as_posix()) for path, below in whole.values()]


def _different(names: Sequence[Path]) -> dict[Path, Path]:
    """Each without its suffix, unless two would then be alike: these keep it."""
    short = {n: n.with_suffix("") for n in names}
    while len(set(short.values())) < len(names):  # twice for a.wav, a.flac and a.wav.mp3
        shared = Counter(short.values())
        short = {n: n if shared[s] > 1 else s for n, s in short.items()}
    return short


def _root(pattern: str) -> Path:
    """The folder that names are relative to: a folder itself, that of a named file, of a glob the part before it."""
    path = Path(pattern)
    if os.path.isdir(path):  # noqa: PTH112
        return path
    if os.path.lexists(path) or not glob.has_magic(pattern):
        return path.parent
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), path.parts[:-1])
    return Path(*fixed)


def _matches(pattern: str) -> list[Path]:
    """Empty for a folder without audio and for a glob or a name that stands for nothing."""
    if not pattern:
        return []  # not the current folder
    path = Path(pattern)
    if os.path.isdir(path):  # noqa: PTH112  (unlike Path.is_dir, False for a name that is too long)
        named: Iterable[Path] = (p for p in path.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
    elif os.path.lexists(path) or not glob.has_magic(pattern):
        return [path]
    else:
        named = map(Path, glob.iglob(pattern, recursive=True))  # noqa: PTH207
    return sorted(p for p in named if not os.path.isdir(p))  # noqa: PTH112


def _nothing(pattern: str) -> str:
    if os.path.isdir(pattern):  # noqa: PTH112
        return f"{pattern} holds no audio file ({', '.join(AUDIO_SUFFIXES)})"
    return f"no file matches {pattern or repr(pattern)}"
