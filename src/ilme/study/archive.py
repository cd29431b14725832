"""A study's finished stages as a few files that travel: to another machine, or back from one.

A parcel is NAME.tar with the folders of one or more stages:

    speech.tar      the tokenizer, and what is known of the training speech
    lm-source.tar   the source LM and the source n-gram
    lm-target.tar and the other LMs, rnnt.tar, aed.tar (with their learned internal LMs)
    results.tar     tuning, tests and tables

Text, audio and checkpoints stay behind: where they are needed, the same seed (or the same recordings) makes them again.
Weights are stored as float16.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_path, make_folder
from ilme.study.runner import MARK, Study

__all__ = ["add_file", "pack", "parcel_plan", "unpack"]

_LAST = ("begun.json", MARK)  # of a stage, when it is unpacked
# Folders that stay behind: checkpoints, stored decodes, and the training speech, which the same seed makes again.
_LEFT_OUT = ("checkpoints", "decodes", "dev", "test", "train", "held-out")
_FILES = {"ngrams": (MARK, "source.safetensors")}  # patterns of what travels of a stage, if not all


def parcel_plan(study: Study) -> dict[str, list[str]]:
    """Which stages travel together, by the name of their parcel."""
    groups: dict[str, list[str]] = {}
    for name in study.stages:
        if name in ("text", "sets") or (name == "speech" and "sets" not in study.stages):
            continue  # made again from the seed, or from the recordings
        if name in ("speech", "tokenizer"):
            groups.setdefault("speech", []).append(name)
        elif name.startswith(("tune-", "test-")) or name == "tables":
            groups.setdefault("results", []).append(name)
        elif name in ("lm-source", "ngrams"):
            groups.setdefault("lm-source", []).append(name)
        elif name.startswith("ilm-"):
            groups.setdefault(name.removeprefix("ilm-"), []).append(name)
        else:
            groups[name] = [name]
    return groups


def pack(study: Study, to: Path, only: Sequence[str] = ()) -> list[Path]:
    """Writes the parcels of what is done; `only` names some of them, and of those it says which are empty."""
    plan = parcel_plan(study)
    for group in only:
        if group not in plan:
            raise BadInputError(f"no parcel {group!r}; this study has {', '.join(plan)}")
    written = []
    for group in [g for g in plan if g in only or not only]:
        names = [n for n in plan[group] if study.done(n)]
        if not names:
            if only:
                study.say(f"{group} is not packed: {', '.join(plan[group])} not done")
            continue
        path = to / f"{group}.tar"
        with atomic_path(path) as partial, tarfile.open(partial, "w") as archive:
            for file in _files(study, names):
                content = _half(file) if file.suffix == ".safetensors" else file.read_bytes()
                add_file(archive, str(file.relative_to(study.out)), content)
        written.append(path)
    return written


def _files(study: Study, names: Iterable[str]) -> Iterable[Path]:
    for name in names:
        folder = study.folder(name)
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder).parts
            wanted = any(path.match(pattern) for pattern in _FILES.get(name, ("*",)))
            if path.is_file() and wanted and not any(part in _LEFT_OUT for part in inside[:-1]):
                yield path


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """A file without owner and time, so that the same content makes the same archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _half(file: Path) -> bytes:
    """The same weights as float16, with the same header; an n-gram's integers stay as they are."""
    import torch
    from safetensors.torch import save

    from ilme.runtime.tensors import read_tensors

    tensors, header = read_tensors(file)
    halved = {n: t.to(torch.float16) if t.dtype == torch.float32 else t for n, t in tensors.items()}
    return save(halved, metadata=header)


def unpack(parcels: Path, out: Path) -> list[str]:
    """Puts the stages of a folder's parcels, or of one parcel, into a study's folder; the names of the stages found.

    What says that a stage was begun and that it is done comes last: one that was not unpacked whole is made anew.
    """
    names: set[str] = set()
    found = _found(parcels)
    make_folder(out)
    for path in found:
        try:
            with tarfile.open(path, "r:") as archive:
                members = archive.getmembers()
                last = [m for name in _LAST for m in members if re.fullmatch(rf"\w[\w.-]*/{re.escape(name)}", m.name)]
                for member in last:
                    (out / member.name).unlink(missing_ok=True)
                archive.extractall(out, [m for m in members if m not in last], filter="data")
                archive.extractall(out, last, filter="data")
                names.update(Path(member.name).parts[0] for member in members)
        except OSError as error:
            raise OSError(error.errno, error.strerror, error.filename or str(out)) from error
        except tarfile.TarError as error:
            raise BadInputError(f"{path} is not a whole parcel: {error}; bring it here once more") from error
    marks = [out / name / MARK for name in sorted(names)]
    return [json.loads(mark.read_text())["stage"] for mark in marks if mark.is_file()]


def _found(parcels: Path) -> list[Path]:
    files = sorted(parcels.glob("*.tar")) if parcels.is_dir() else [parcels] if parcels.is_file() else []
    if not files:
        raise BadInputError(f"{parcels} is neither a parcel nor a folder with parcels; `ilme study pack` writes them")
    return files
