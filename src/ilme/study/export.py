"""What a study on recordings reads, gathered into a few files that travel to a machine without the corpora.

FOLDER-1/recordings.zip, FOLDER-2/recordings.zip, …: unpacked into one folder, they are a root for `recordings.roots`.
First come the text and the manifests, then Whisper's weights, the held-out speech, dev and test sets, and the training
speech last: the language models can be trained before all of it is there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_path
from ilme.study.config import StudyConfig
from ilme.study.corpora import audio_of, find_file, manifest_of, rows_of, training_rows
from ilme.study.recordings import target_text

__all__ = ["gather"]

ARCHIVE = "recordings.zip"
_OVERHEAD = 200  # bytes that a small file costs beside its content, about
_PACKED = (".opus", ".xz", ".gz", ".flac", ".mp3", ".safetensors")  # cannot be made smaller
_SAVED = 4  # compressing other files, text for the most part, makes them about so many times smaller

Member = tuple[str, Path]  # the name inside a root, and the file


def gather(config: StudyConfig, folder: Path, sizes: Sequence[float]) -> list[Path]:
    """Writes the archives; `sizes` are their limits in MiB, the last one for all that follow."""
    if not config.recordings.active:
        raise BadInputError(f"{config.name} has no recordings: it speaks its text itself, there is nothing to gather")
    if not sizes or min(sizes) <= 0:
        raise BadInputError(f"sizes={list(sizes)} must be positive: the most MiB of each archive, such as 60")
    written: list[Path] = []
    for number, members in enumerate(_shared_out(_members(config), sizes), 1):
        written.append(folder.with_name(f"{folder.name}-{number}") / ARCHIVE)
        with atomic_path(written[-1]) as partial, zipfile.ZipFile(partial, "w") as archive:
            for name, path in members:
                archive.write(path, name, zipfile.ZIP_STORED if path.suffix in _PACKED else zipfile.ZIP_DEFLATED)
    return written


def _shared_out(members: Iterable[Member], sizes: Sequence[float]) -> list[list[Member]]:
    """The members of each archive, in their order: an archive is closed where the next file does not fit."""
    archives: list[list[Member]] = []
    room = 0.0
    for name, path in members:
        needed = _stored_size(path)
        if not archives or needed > room:
            limit = sizes[min(len(archives), len(sizes) - 1)]
            archives.append([])
            room = limit * 2**20
            if needed > room:
                raise BadInputError(
                    f"{path} has {needed / 2**20:.1f} MiB, more than an archive may have: {limit:g} MiB; give a larger "
                    "size"
                )
        archives[-1].append((name, path))
        room -= needed
    return archives


def _stored_size(path: Path) -> int:
    size = path.stat().st_size
    return _OVERHEAD + (size if path.suffix in _PACKED else size // _SAVED)


def _members(config: StudyConfig) -> Iterator[Member]:
    """Everything that the study reads but synthetic speech, which is made where it is needed."""
    plan = config.recordings
    text = target_text(config)
    yield f"text/{config.text.target.name}/{text.name}", text
    looked_at = (plan.held_out, *plan.sets.values())
    for corpus, part in {part.corpus: part for part in (plan.train, *looked_at, *plan.texts.values())}.items():
        yield f"{corpus}/manifest.jsonl", manifest_of(plan, part)
    if plan.whisper:
        yield plan.whisper, find_file(plan, plan.whisper)
    parts = [(part, rows_of(plan, part, config.seed)) for part in looked_at]
    for part, rows in (*parts, (plan.train, training_rows(plan, config.seed))):
        for row in rows:
            yield f"{part.corpus}/{row.audio}", audio_of(plan, part, row)
