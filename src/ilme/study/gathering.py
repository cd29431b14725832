"""What a study on recordings reads, gathered into a few files that travel to a machine without the corpora.

FOLDER-1/recordings.zip, FOLDER-2/recordings.zip, …: unpacked into one folder, they are a root for `recordings.roots`.
First come the text and the manifests, then Whisper's weights, the held-out speech, dev and test sets, and the training
speech last: the language models can be trained before all of it is there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ilme.errors import BadInputError
from ilme.study.config import StudyConfig
from ilme.study.corpora import find_file, manifest_of, rows_of, training_rows
from ilme.study.recordings import target_text

__all__ = ["gather"]

ARCHIVE = "recordings.zip"
_OVERHEAD = 200  # bytes that a small file costs beside its content, about
_PACKED = (".opus", ".xz", ".gz", ".flac", ".mp3", ".safetensors")  # cannot be made smaller


def gather(config: StudyConfig, folder: Path, sizes: Sequence[float]) -> list[Path]:
    """Writes the archives; `sizes` are their limits in MiB, the last one for all that follow."""
    if not config.recordings.active:
        raise BadInputError(f"{config.name} has no recordings: it speaks its text itself, there is nothing to gather")
    if not sizes or min(sizes) <= 0:
        raise BadInputError(f"sizes={list(sizes)} must be MiB of each archive")
    written: list[Path] = []
    archive: zipfile.ZipFile | None = None
    room = 0.0
    for name, path in _files(config):
        needed = _stored_size(path)
        if archive is None or needed > room:
            if archive is not None:
                archive.close()
            archive, room = _open(folder, len(written) + 1), sizes[min(len(written), len(sizes) - 1)] * 2**20
            written.append(Path(str(archive.filename)))
            if needed > room:
                raise BadInputError(f"{path} has {needed / 2**20:.1f} MiB, more than an archive may have")
        kind = zipfile.ZIP_STORED if path.suffix in _PACKED else zipfile.ZIP_DEFLATED
        archive.write(path, name, kind)
        room -= needed
    if archive is not None:
        archive.close()
    return written


def _open(folder: Path, number: int) -> zipfile.ZipFile:
    place = folder.with_name(f"{folder.name}-{number}")
    place.mkdir(parents=True, exist_ok=True)
    return zipfile.ZipFile(place / ARCHIVE, "w")


def _stored_size(path: Path) -> int:
    size = path.stat().st_size
    return _OVERHEAD + (size if path.suffix in _PACKED else size // 4)


def _files(config: StudyConfig) -> Iterator[tuple[str, Path]]:
    """(name inside a root, file) of everything that the study reads."""
    plan = config.recordings
    text = target_text(config)
    yield f"text/{config.text.target.name}/{text.name}", text
    parts = (plan.held_out, *plan.sets.values())
    for corpus in dict.fromkeys(part.corpus for part in (plan.train, *parts, *plan.texts.values())):
        named = next(part for part in (plan.train, *parts, *plan.texts.values()) if part.corpus == corpus)
        yield f"{corpus}/manifest.jsonl", manifest_of(plan, named)
    if plan.whisper:
        yield plan.whisper, find_file(plan, plan.whisper)
    for part in parts:
        for row in rows_of(plan, part, config.seed):
            yield f"{part.corpus}/{row.audio}", find_file(plan, f"{part.corpus}/{row.audio}")
    for row in training_rows(plan, config.seed):
        yield f"{plan.train.corpus}/{row.audio}", find_file(plan, f"{plan.train.corpus}/{row.audio}")
