"""Decoded utterances on disk, written as they finish: a decode that was killed continues where it stopped.

One folder per decode, one file per process: a header line, then one line per utterance. All files of a folder are
read together, so the number of processes may change between two attempts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from ilme.errors import BadInputError
from ilme.runtime.files import append, open_journal
from ilme.search.hypothesis import Hypothesis, NBest

__all__ = ["DecodeStore", "identity"]

FORMAT = "ilme-hypotheses"
VERSION = 1


def identity(description: Mapping[str, Any]) -> str:
    """A short name that differs whenever the description differs."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class DecodeStore:
    """The n-best lists of one decode.

    Args:
        folder: Where its files are; made when the first line is written.
        description: What was decoded and how; files of another description are an error, not silently mixed in.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.folder, self.description = folder, dict(description)
        self._file: FileIO | None = None

    def read(self) -> dict[str, NBest]:
        """Every utterance written so far, by id. A last line that was cut off is passed over."""
        lists: dict[str, NBest] = {}
        for path in sorted(self.folder.glob("part-*.jsonl")):
            for number, line in enumerate(_whole_lines(path.read_bytes()), 1):
                row = _parse(path, number, line)
                if number == 1:
                    self._check_header(path, row)
                    continue
                try:
                    lists.setdefault(row["id"], [Hypothesis.from_json(h) for h in row["nbest"]])
                except (KeyError, TypeError) as error:
                    raise BadInputError(f"{path}, line {number} is not an utterance: {error!r}") from error
        return lists

    def open(self, rank: int = 0) -> DecodeStore:
        """Ready to write this process's part; what a killed attempt left half-written is cut off."""
        path = self.folder / f"part-{rank:04d}.jsonl"
        kept = path.read_bytes() if path.exists() else b""
        whole = kept[: kept.rfind(b"\n") + 1]
        self._file = open_journal(path, "r+b" if kept else "wb")
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        if not whole:
            append(self._file, _line({"format": FORMAT, "version": VERSION, "decode": self.description}))
        return self

    def write(self, lists: Iterable[tuple[str, NBest]]) -> None:
        """Adds utterances; when it returns they survive the end of this process, however it ends."""
        if self._file is None:
            raise BadInputError("open the store before writing to it")
        append(self._file, b"".join(_line({"id": i, "nbest": [h.to_json() for h in nbest]}) for i, nbest in lists))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> DecodeStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_header(self, path: Path, row: Any) -> None:
        if not isinstance(row, dict) or row.get("format") != FORMAT:
            raise BadInputError(f"{path} does not begin as a file of hypotheses; choose another folder")
        if row.get("version") != VERSION:
            raise BadInputError(f"{path} has version {row.get('version')!r}, this ilme writes {VERSION}; remove it")
        found = json.loads(json.dumps(row.get("decode")))
        wanted = json.loads(json.dumps(self.description))
        if found != wanted:
            differs = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
            raise BadInputError(
                f"{path} comes from another decode: {', '.join(differs)} differ; choose another folder or remove it"
            )


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _whole_lines(content: bytes) -> list[bytes]:
    return content[: content.rfind(b"\n") + 1].splitlines()


def _parse(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadInputError(
            f"{path}, line {number} is damaged ({error}); remove that line and the utterance is decoded again"
        ) from error
