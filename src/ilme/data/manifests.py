"""Reading and writing Lhotse cut manifests."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_stream

__all__ = ["ManifestWriter", "cuts_path", "file_name", "open_cuts"]


def cuts_path(path: str | Path) -> Path:
    """The manifest a user means: a file, or the cuts.jsonl.gz of a folder that an import wrote."""
    path = Path(path)
    if path.is_dir() and (path / "cuts.jsonl.gz").is_file():
        return path / "cuts.jsonl.gz"
    if path.is_file() or is_shar(path):
        return path
    raise BadInputError(f"there are no cuts at {path}: expected cuts.jsonl.gz, a folder with it, or Shar shards")


def is_shar(path: Path) -> bool:
    """Whether a folder holds Lhotse Shar shards."""
    return path.is_dir() and any(path.glob("cuts.*.jsonl*")) and any(path.glob("recording.*.tar"))


def open_cuts(path: str | Path, *, seed: int = 0) -> Any:
    """A lazily read Lhotse CutSet: of a manifest, an import's folder, or Shar shards, ordered by `seed`."""
    from lhotse import CutSet

    path = cuts_path(path)
    if is_shar(path):
        return CutSet.from_shar(in_dir=str(path), shuffle_shards=True, stateful_shuffle=False, seed=seed)
    try:
        return CutSet.from_jsonl_lazy(path)
    except (OSError, ValueError, KeyError) as error:
        raise BadInputError(f"{path} is no manifest of cuts: {error}") from error


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
