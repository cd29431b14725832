"""The layouts in which speech corpora come, each read into the same plain list of utterances.

A reader only lists what a corpus says it holds: it opens no audio and rejects nothing. A line that cannot be
read is still listed, with its `problem`, so that what is found can be counted against what is accepted.
Lhotse has recipes for some of these layouts, but they stop at, or pass over, a file that is not as expected.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ilme.errors import BadInputError

__all__ = ["AUDIO_SUFFIXES", "READERS", "CorpusEntry", "Layout", "detect_layout", "read_corpus"]

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".oga", ".aiff", ".aif", ".au", ".w64", ".caf")
Layout = Literal["auto", "librispeech", "commonvoice", "kaldi", "nemo", "folder", "huggingface"]


@dataclass(frozen=True)
class CorpusEntry:
    """One utterance as its corpus describes it; nothing of it is verified yet.

    Attributes:
        id: Its name, unique in its corpus.
        audio: The file; None where none is named.
        text: The transcript; None where there is none.
        speaker: Who speaks, where known.
        start: Where it starts in the file, in seconds.
        duration: Its length as stated, in seconds; None where nothing is stated.
        whole_file: Whether it is all of the file, so that a stated duration can be held against the file's.
        fields: What else the corpus says, such as `chapter`, `call` or `split`.
        problem: (reason, detail) of an entry that could not be read.
    """

    id: str
    audio: Path | None = None
    text: str | None = None
    speaker: str | None = None
    start: float = 0.0
    duration: float | None = None
    whole_file: bool = True
    fields: dict[str, str] = field(default_factory=dict)
    problem: tuple[str, str] | None = None


def read_corpus(source: str, layout: Layout = "auto", staging: Path | None = None) -> list[CorpusEntry]:
    """Every utterance that a corpus names.

    Args:
        source: A folder, a manifest file, or the name of a Hugging Face dataset.
        layout: One of the readers; `auto` looks at the files.
        staging: Where audio that is not a file yet (Hugging Face) is written.
    """
    name = detect_layout(source) if layout == "auto" else layout
    if name == "huggingface":
        from ilme.data.huggingface import read_huggingface

        if staging is None:
            raise BadInputError("a Hugging Face dataset needs a folder to write its audio to")
        return list(read_huggingface(source, staging))
    path = Path(source)
    if not path.exists():
        raise BadInputError(f"there is no corpus {source}")
    return list(READERS[name](path))


def detect_layout(source: str) -> str:
    """The layout of a folder or file, by the names of its files."""
    path = Path(source)
    if source.startswith("hf:"):
        return "huggingface"
    if not path.exists():
        raise BadInputError(f"there is no corpus {source}; Hugging Face names are hf:NAME[:CONFIG][:SPLIT]")
    if path.is_file():
        layouts = {".tsv": "commonvoice", ".jsonl": "nemo", ".json": "nemo"}
        if path.suffix in layouts:
            return layouts[path.suffix]
        raise BadInputError(f"{path} is neither a folder nor a .jsonl or .tsv manifest; name its --layout")
    if (path / "wav.scp").is_file():
        return "kaldi"
    if (path / "manifest.jsonl").is_file():
        return "nemo"
    if (path / "clips").is_dir() and any(path.glob("*.tsv")):
        return "commonvoice"
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return "huggingface"
    if next(path.rglob("*.trans.txt"), None) is not None:
        return "librispeech"
    if any(file.suffix.lower() in AUDIO_SUFFIXES for file in path.rglob("*")):
        return "folder"
    raise BadInputError(
        f"{path} looks like no known layout: expected *.trans.txt, clips/ with *.tsv, wav.scp, "
        "manifest.jsonl, or audio with .txt files beside it"
    )


def read_librispeech(folder: Path) -> Iterator[CorpusEntry]:
    """SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt with lines `ID TEXT`, and ID.flac beside it."""
    seen: set[Path] = set()
    for transcript in sorted(folder.rglob("*.trans.txt")):
        inside = transcript.relative_to(folder).parts[:-1]
        subset = {"subset": inside[0]} if len(inside) == 3 else {}
        for number, line in _lines(transcript):
            if isinstance(line, CorpusEntry):
                yield line
                continue
            name, _, text = line.partition(" ")
            speaker, _, rest = name.partition("-")
            audio = _audio_named(transcript.parent / name)
            seen.add(audio)
            fields = {**subset, "chapter": rest.partition("-")[0]} if rest else subset
            if not rest:
                problem = (
                    "bad manifest line",
                    f"{transcript}:{number}: {name[:60]!r} is not SPEAKER-CHAPTER-NUMBER",
                )
                yield CorpusEntry(f"{transcript.name}:{number}", problem=problem)
                continue
            yield CorpusEntry(name, audio, text.strip(), speaker, fields=fields)
    for audio in _audio_files(folder):
        if audio not in seen:
            yield CorpusEntry(audio.stem, audio)


def read_commonvoice(source: Path) -> Iterator[CorpusEntry]:
    """TSV files with the columns `client_id`, `path` and `sentence`, and the audio in clips/.

    A folder gives its train, dev and test files (field `split`), or validated.tsv where these are absent.
    """
    folder = source.parent if source.is_file() else source
    tables = [source] if source.is_file() else [folder / f"{n}.tsv" for n in ("train", "dev", "test")]
    tables = [t for t in tables if t.is_file()] or [t for t in [folder / "validated.tsv"] if t.is_file()]
    if not tables:
        raise BadInputError(f"{folder} has no train.tsv, dev.tsv, test.tsv or validated.tsv")
    durations = _clip_durations(folder / "clip_durations.tsv")
    for table in tables:
        rows = _lines(table)
        header = next((line for _, line in rows if isinstance(line, str)), "").split("\t")
        if not {"path", "sentence"} <= set(header):
            raise BadInputError(f"{table} has no columns 'path' and 'sentence'; its first line is {header[:8]}")
        for number, line in rows:
            if isinstance(line, CorpusEntry):
                yield line
                continue
            cells = line.split("\t")
            if len(cells) < len(header):
                detail = f"{table}:{number} has {len(cells)} of {len(header)} columns"
                yield CorpusEntry(f"{table.name}:{number}", problem=("bad manifest line", detail))
                continue
            row = dict(zip(header, cells, strict=False))
            clip = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"
            keep = ("accents", "accent", "age", "gender", "locale")
            fields = {"split": table.stem, **{key: row[key] for key in keep if row.get(key)}}
            yield CorpusEntry(
                Path(clip).stem,
                folder / "clips" / clip,
                row["sentence"],
                row.get("client_id") or None,
                duration=durations.get(clip),
                fields=fields,
            )


def read_kaldi(folder: Path) -> Iterator[CorpusEntry]:
    """A Kaldi data dir: wav.scp, text, and optionally segments, utt2spk, utt2dur.

    A command in wav.scp (a line that ends in `|`) is never run: it is listed as a problem.
    """
    if not (folder / "wav.scp").is_file():
        raise BadInputError(f"{folder} is no Kaldi data dir: it has no wav.scp")
    unreadable: list[CorpusEntry] = []
    recordings, texts, speakers, durations = (
        dict(_pairs(folder / name, unreadable)) for name in ("wav.scp", "text", "utt2spk", "utt2dur")
    )
    named: set[str] = set()

    def utterance(name: str, recording: str, start: float, duration: float | None, whole: bool) -> CorpusEntry:
        named.add(name)
        location = recordings.get(recording)
        problem = None
        if location is not None and location.endswith("|"):
            problem = (
                "not a file",
                f"wav.scp gives a command for {recording}, which is not run: write it to a file",
            )
        audio = None if location is None else _relative(folder, location)
        fields = {} if whole else {"recording": recording}
        return CorpusEntry(name, audio, texts.get(name), speakers.get(name), start, duration, whole, fields, problem)

    if (folder / "segments").is_file():
        for name, rest in _pairs(folder / "segments", unreadable):
            parts = rest.split()
            numbers = [_number(part) for part in parts[1:3]]
            if len(parts) < 3 or None in numbers:
                detail = f"{folder / 'segments'}: {name} {rest[:80]!r} is not RECORDING START END"
                yield CorpusEntry(name, problem=("bad manifest line", detail))
                named.add(name)
                continue
            start, end = numbers[0] or 0.0, numbers[1] or 0.0
            to_the_end = end < 0  # Kaldi writes -1 for the end of the recording
            yield utterance(name, parts[0], start, None if to_the_end else end - start, False)
    else:
        for name in recordings:
            yield utterance(name, name, 0.0, _number(durations.get(name)), True)
    for name in sorted(texts.keys() - named):
        yield CorpusEntry(name, text=texts[name], speaker=speakers.get(name))
    yield from unreadable


def read_nemo(source: Path) -> Iterator[CorpusEntry]:
    """JSON lines with `audio_filepath`, `duration`, `text`, and whatever else the corpus has to say.

    `id`, `speaker` and `offset` are known names; other plain values are kept as fields.
    """
    manifest = source / "manifest.jsonl" if source.is_dir() else source
    found = [
        line if isinstance(line, CorpusEntry) else _nemo_entry(manifest, number, line)
        for number, line in _lines(manifest)
    ]
    twice = {name for name, count in Counter(u.id for u in found).items() if count > 1}
    for utterance in found:
        if utterance.id in twice and utterance.audio is not None and utterance.problem is None:
            yield replace(utterance, id=_name_by_path(manifest.parent, utterance))
        else:
            yield utterance


def _nemo_entry(manifest: Path, number: int, line: str) -> CorpusEntry:
    def broken(detail: str) -> CorpusEntry:
        problem = ("bad manifest line", f"{manifest}:{number}: {detail}")
        return CorpusEntry(f"{manifest.name}:{number}", problem=problem)

    try:
        row: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return broken(f"no JSON: {error}")
    if not isinstance(row, dict):
        return broken(f"a JSON object is needed, not {type(row).__name__}")
    location = row.pop("audio_filepath", None)
    text, duration, offset = row.pop("text", None), row.pop("duration", None), row.pop("offset", None)
    if not isinstance(location, str) or not location:
        return broken("audio_filepath is missing")
    if text is not None and not isinstance(text, str):
        return broken(f"text is {type(text).__name__}, not a string")
    numbers = {"duration": duration, "offset": offset}
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or _number(value) is None):
            return broken(f"{name}={str(value)[:40]} is not a number")
    start = _number(offset) or 0.0
    name = str(row.pop("id", "")) or Path(location).stem + (f"-{round(1000 * start):08d}" if start else "")
    speaker = row.pop("speaker", None)
    fields = {key: str(value) for key, value in row.items() if isinstance(value, str | int | float) and value != ""}
    return CorpusEntry(
        name,
        _relative(manifest.parent, location),
        text,
        None if speaker in (None, "") else str(speaker),
        start,
        _number(duration),
        offset is None,
        fields,
    )


def read_folder(folder: Path) -> Iterator[CorpusEntry]:
    """Audio files anywhere below a folder, each with its transcript beside it in a .txt file of its name."""
    files = _audio_files(folder)
    for audio in files:
        transcript = audio.with_suffix(".txt")
        name = "-".join(audio.relative_to(folder).with_suffix("").parts)
        text, problem = None, None
        if transcript.is_file():
            text, problem = _decode(transcript.read_bytes(), transcript)
        yield CorpusEntry(name, audio, text, problem=problem)
    spoken = {audio.with_suffix(".txt") for audio in files}
    for transcript in sorted(folder.rglob("*.txt")):
        if transcript not in spoken:
            name = "-".join(transcript.relative_to(folder).with_suffix("").parts)
            text, problem = _decode(transcript.read_bytes(), transcript)
            yield CorpusEntry(name, None, text, problem=problem)


READERS: dict[str, Callable[[Path], Iterator[CorpusEntry]]] = {
    "librispeech": read_librispeech,
    "commonvoice": read_commonvoice,
    "kaldi": read_kaldi,
    "nemo": read_nemo,
    "folder": read_folder,
}


def _lines(path: Path) -> Iterator[tuple[int, str | CorpusEntry]]:
    """(number, line) of a text file without its empty lines.

    A byte order mark, CRLF and UTF-16 (by its mark) are understood. A line that is no UTF-8 comes as a
    CorpusEntry with a problem.
    """
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text, problem = _decode(data, path)
        if problem:
            yield 0, CorpusEntry(path.name, problem=problem)
        data = (text or "").encode("utf-8")
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        raw = raw.rstrip(b"\r")
        if not raw.strip():
            continue
        text, problem = _decode(raw, path)
        yield number, CorpusEntry(f"{path.name}:{number}", problem=problem) if problem else (text or "")


def _decode(data: bytes, path: Path) -> tuple[str | None, tuple[str, str] | None]:
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return data.decode(encoding), None
    except UnicodeDecodeError as error:
        return None, (
            "bad encoding",
            f"{path} is not {encoding.removesuffix('-sig')}: {error}; convert it to UTF-8",
        )


def _pairs(path: Path, unreadable: list[CorpusEntry]) -> Iterator[tuple[str, str]]:
    """`KEY VALUE…` lines of a Kaldi file, none where it is absent; bad lines go to `unreadable`."""
    for _, line in _lines(path) if path.is_file() else ():
        if isinstance(line, CorpusEntry):
            unreadable.append(line)
            continue
        key, *value = line.split(maxsplit=1)
        yield key, value[0].strip() if value else ""


def _clip_durations(path: Path) -> dict[str, float]:
    """Common Voice's own table of clip lengths, in milliseconds, where the release has one."""
    durations: dict[str, float] = {}
    if path.is_file():
        for _, line in _lines(path):
            clip, _, milliseconds = line.partition("\t") if isinstance(line, str) else ("", "", "")
            value = _number(milliseconds)
            if value is not None:
                durations[clip] = value / 1000
    return durations


def _audio_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file())


def _audio_named(stem: Path) -> Path:
    """The audio file of this name, of whatever format; FLAC, as the corpus has it, where there is none."""
    for suffix in (".flac", *AUDIO_SUFFIXES):
        candidate = stem.with_name(stem.name + suffix)
        if candidate.is_file():
            return candidate
    return stem.with_name(stem.name + ".flac")


def _relative(folder: Path, location: str) -> Path:
    path = Path(location).expanduser()
    return path if path.is_absolute() else folder / path


def _name_by_path(folder: Path, utterance: CorpusEntry) -> str:
    path = utterance.audio or Path(utterance.id)
    path = path.relative_to(folder) if path.is_relative_to(folder) else path
    name = "-".join(part for part in path.with_suffix("").parts if part != "/")
    return name + (f"-{round(1000 * utterance.start):08d}" if utterance.start else "")


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
