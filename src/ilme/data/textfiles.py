"""Reading text of any size, age and origin: globs, compression, archives, manifests, odd encodings.

Nothing here holds more than one line and one decoding buffer. What cannot be read is reported, never
dropped in silence.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ilme.errors import BadInputError

__all__ = ["OPENERS", "TextSource", "expand", "read_lines", "sources"]

LONGEST_LINE = 1 << 20  # characters; longer lines arrive in pieces
_HEAD = 1 << 16
_DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError)
OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}  # by ending

Report = Callable[[str, str], None]


@dataclass(frozen=True)
class TextSource:
    """One text, decoded: its name and its lines without line ends."""

    name: str
    lines: Iterator[str]


def expand(patterns: Sequence[str]) -> list[Path]:
    """The files that names and globs (`**` included) stand for, each pattern's in sorted order, none twice.

    Raises:
        BadInputError: A pattern that matches no file.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        names = [path] if _is_file(path) else sorted(Path(p) for p in glob.iglob(pattern, recursive=True))  # noqa: PTH207
        files = [p for p in names if _is_file(p)]
        if not files:
            raise BadInputError(f"no text file matches {pattern or repr(pattern)}{_hint(path)}")
        found.update(dict.fromkeys(files))
    return list(found)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  (unlike Path.is_file, False for a name that is too long)


def _hint(path: Path) -> str:
    if os.path.isdir(path):  # noqa: PTH112
        return "; give its files as a glob, such as FOLDER/**/*.txt"
    return ": it is a pipe, a device or a broken link; write the text to a file" if os.path.lexists(path) else ""


def sources(paths: Sequence[Path], report: Report) -> Iterator[TextSource]:
    """Every text in the files; a tar archive holds one for each of its members. Use each up before the next.

    Args:
        paths: The files: plain, .gz, .xz, .bz2, .tar and compressed tar, .jsonl (the field `text` of each line).
        report: Called with a name and a reason for everything that cannot be read.
    """
    for path in paths:
        if ".tar" in path.suffixes or path.suffix == ".tgz":
            yield from _members(path, report)
            continue
        try:
            with OPENERS.get(path.suffix, _open_plain)(path) as stream:
                yield TextSource(str(path), _text(stream, str(path), report))
        except _DAMAGE as error:
            report(str(path), f"cannot be opened: {error}")


def _open_plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _members(path: Path, report: Report) -> Iterator[TextSource]:
    try:
        with _decompressed(path) as content:
            whole: Any = _Watched(content)
            with tarfile.open(fileobj=whole, mode="r|") as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.isfile() else None
                    if stream is not None:
                        name = f"{path}:{member.name}"
                        yield TextSource(name, _text(stream, name, report))
            while whole.read(_HEAD):
                pass  # the checksum of a compressed archive stands at its end
            if whole.cut_off:
                report(str(path), "the archive is cut off: the mark at its end is missing")
    except BadInputError:
        raise  # of a report that stops at the first problem
    except (*_DAMAGE, ValueError) as error:  # tarfile raises a bare ValueError for some headers
        report(str(path), f"the archive is damaged or cut off: {error}")


def _decompressed(path: Path) -> Any:
    """The bytes of a tar archive, whatever its name says about its compression."""
    with path.open("rb") as stream:
        head = stream.read(6)
    kinds = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
    return next((opener for mark, opener in kinds if head.startswith(mark)), _open_plain)(path)


class _Watched:
    """A stream that knows whether it ended without the zeros that end every archive: tarfile does not tell."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, b""
        self.cut_off = False

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._last = (self._last + data)[-tarfile.BLOCKSIZE :]
        self.cut_off = len(data) < size and any(self._last)
        return data


def _text(stream: IO[bytes], name: str, report: Report) -> Iterator[str]:
    """The lines of one byte stream; a manifest gives its transcripts."""
    lines = read_lines(stream, name, report)
    return _transcripts(lines, name, report) if _is_manifest(name) else lines


def _is_manifest(name: str) -> bool:
    return name.removesuffix(".gz").removesuffix(".xz").removesuffix(".bz2").endswith((".jsonl", ".ndjson"))


def _transcripts(lines: Iterator[str], name: str, report: Report) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            report(f"{name}, line {number}", "not JSON")
            continue
        text = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(text, str):
            report(f"{name}, line {number}", "no field 'text'")
        elif any("\ud800" <= c <= "\udfff" for c in text):
            report(f"{name}, line {number}", "the text holds half a character (a lone surrogate)")
        else:
            yield text


def read_lines(stream: IO[bytes], name: str, report: Report) -> Iterator[str]:
    """Lines without their ends, whatever ends them; a line over LONGEST_LINE characters comes in pieces."""
    try:
        head = _read_head(stream)
        encoding = _encoding(head)
        if encoding is None:
            report(name, "is binary, not text")
            return
        if encoding == "cp1252":
            report(name, "is not UTF-8; read as Windows-1252")
        buffered = io.BufferedReader(_Joined(head, stream), 1 << 16)
        with io.TextIOWrapper(buffered, encoding, errors="replace", newline=None) as text:
            while line := text.readline(LONGEST_LINE):
                yield line.rstrip("\n")
    except _DAMAGE as error:
        report(name, f"is damaged or cut off: {error}")
    except UnicodeError as error:
        report(name, f"cannot be decoded to its end: {error}")


def _read_head(stream: IO[bytes]) -> bytes:
    head = b""
    while len(head) < _HEAD and (more := stream.read(_HEAD - len(head))):
        head += more
    return head


def _encoding(head: bytes) -> str | None:
    """The encoding that the start of a text shows; None where it is no text."""
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return name
    control = sum(head.count(bytes([i])) for i in range(32) if i not in (9, 10, 11, 12, 13, 27))
    if control > len(head) // 100:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(head)
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252"


class _Joined(io.RawIOBase):
    """Bytes already read, then the rest of their stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)]
        self._head = self._head[len(buffer) :]
        if not data:
            data = self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
