"""Reading and writing manifests: JSON lines, and the Lhotse cuts that they hold.

Every line is checked as it is read: what is wrong with it is a `BadInputError` that names the file and the line.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_stream

__all__ = ["ManifestWriter", "cuts_path", "file_name", "number", "open_cuts", "plain_text", "read_json_lines"]

LONGEST_LINE = 1 << 24  # bytes


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a manifest, plain or .gz; blank lines and a byte-order mark are skipped.

    Raises:
        BadInputError: A line that is not one JSON object, or a file that is damaged or not UTF-8.
    """
    line = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for line, content in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), 1):
                if len(content) == LONGEST_LINE:
                    raise _NotAnObjectError(f"it is longer than {LONGEST_LINE:,} bytes")
                text = content.decode("utf-8-sig" if line == 1 else "utf-8").strip()
                if text:
                    yield line, _json_object(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, _NotAnObjectError) as error:
        raise BadInputError(f"{path}, line {line} is not a JSON object in UTF-8: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path} cannot be read to its end: {error}; fetch or write it again") from error


class _NotAnObjectError(ValueError):
    """JSON of another kind."""


def _json_object(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:  # a number of thousands of digits too
        raise _NotAnObjectError(str(error)) from error
    if not isinstance(row, dict):
        raise _NotAnObjectError(f"it is {type(row).__name__}, not {{…}}")
    return row


def number(row: dict[str, Any], key: str, default: float = 0.0) -> float:
    """A finite number that is not negative; null counts as missing."""
    value = row.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise BadInputError(f"{key} must be a number of at least 0, not {_shown(value)}")
    return float(value)


def plain_text(row: dict[str, Any], key: str) -> str:
    """A text that can be written as UTF-8; null counts as empty, and whole numbers are taken as they are written."""
    value = row.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInputError(f"{key} must be text, not {_shown(value)}")
    try:
        return str(value).encode().decode()
    except UnicodeEncodeError as error:
        raise BadInputError(f"{key} holds half a character (a lone surrogate): {_shown(value)}") from error
    except ValueError as error:  # a number of thousands of digits
        raise BadInputError(f"{key} must be text, not a huge number") from error


def _shown(value: object) -> str:
    try:
        shown = ascii(value)
    except ValueError:
        return "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def cuts_path(path: str | Path) -> Path:
    """The manifest a user means: a file, or the cuts.jsonl.gz of a folder that an import wrote."""
    path = Path(path)
    if os.path.isfile(path / "cuts.jsonl.gz"):  # noqa: PTH113  (unlike Path.is_file, False for a name that is too long)
        return path / "cuts.jsonl.gz"
    if os.path.isfile(path) or is_shar(path):  # noqa: PTH113
        return path
    raise BadInputError(f"there are no cuts at {path}: expected cuts.jsonl.gz, a folder with it, or Shar shards")


def is_shar(path: Path) -> bool:
    """Whether a folder holds Lhotse Shar shards."""
    return os.path.isdir(path) and any(path.glob("cuts.*.jsonl*")) and any(path.glob("recording.*.tar"))  # noqa: PTH112


def open_cuts(path: str | Path, *, seed: int = 0) -> Any:
    """A lazily read Lhotse CutSet: of a manifest, an import's folder, or Shar shards, ordered by `seed`."""
    from lhotse import CutSet

    path = cuts_path(path)
    if is_shar(path):
        return CutSet.from_shar(in_dir=str(path), shuffle_shards=True, stateful_shuffle=False, seed=seed)
    return CutSet(CheckedCuts(path))


class CheckedCuts:
    """The cuts of a manifest, read each time it is iterated over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        return (cut for _, cut in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """(line number, cut)."""
        from lhotse.cut import Cut
        from lhotse.serialization import deserialize_item

        for line, row in read_json_lines(self.path):
            try:
                _check_cut(row)
                cut = deserialize_item(row)
                if not isinstance(cut, Cut):
                    raise BadInputError(f"it is a {type(cut).__name__}")
            except Exception as error:  # Lhotse checks nothing, so that a wrong field fails in any way
                raise BadInputError(f"{self.path}, line {line} is no Lhotse cut: {_reason(error)}") from error
            yield line, cut


def _check_cut(row: dict[str, Any]) -> None:
    """An error where the fields that every cut has are wrong."""
    if not isinstance(row.get("type"), str):
        raise BadInputError("it has no field 'type', such as MonoCut")
    if "id" not in row or not plain_text(row, "id"):
        raise BadInputError("it has no id")
    spoken = row.get("supervisions") or []
    if not isinstance(spoken, list) or not all(isinstance(s, dict) for s in spoken):
        raise BadInputError("supervisions must be a list of objects")
    number(row, "start")
    if row["type"] != "MixedCut" and number(row, "duration") <= 0:
        raise BadInputError("duration must be more than 0")
    for supervision in spoken:
        plain_text(supervision, "text")
        plain_text(supervision, "speaker")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, BadInputError) else f"{type(error).__name__}: {error}"


def file_name(text: str) -> str:
    """Any text as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)[:80] or "_"


class ManifestWriter:
    """Writes JSON lines to several files of one folder; all of them appear when the block ends well, or none.

    Names that end in .gz are compressed. The same rows give the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._files: dict[str, IO[bytes] | gzip.GzipFile] = {}
        self.counts: Counter[str] = Counter()

    def open(self, name: str) -> None:
        """Makes the file even if nothing is ever written to it."""
        if name not in self._files:
            stream = self._open.enter_context(atomic_stream(self._folder / name))
            self._files[name] = stream
            if name.endswith(".gz"):
                compressed = gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
                self._files[name] = self._open.enter_context(compressed)

    def write(self, name: str, row: dict[str, Any]) -> None:
        self.open(name)
        self._files[name].write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self.counts[name] += 1

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
