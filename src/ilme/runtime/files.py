"""The one writer of files: they are whole or not there. And how to tell two files apart.

Everything is written beside its place under a hidden name that ends in `.partial`, and moved when it is complete. What
cannot be written is a `WriteError` of one line that names the file and says what to do.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from ilme.errors import CheckpointError

__all__ = [
    "WriteError",
    "append",
    "atomic_path",
    "atomic_stream",
    "atomic_text",
    "explained",
    "file_hash",
    "make_folder",
    "open_journal",
    "remove_partials",
    "replace_folder",
    "short_hash",
    "weights_file",
    "working_folder",
    "write_atomically",
    "write_json",
    "write_json_lines",
    "write_text",
    "write_texts",
]

KEPT = 50  # characters of a name that the name of what is being written has
EDGE = 1 << 20  # bytes at either end of a file that `short_hash` reads

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADVICE = {
    **dict.fromkeys(_FULL, "free some space, or choose another place"),
    errno.EROFS: "choose another place",
    errno.EACCES: "choose a place where you may write",
    errno.EPERM: "choose a place where you may write",
    errno.EISDIR: "a folder has this name; choose another",
    errno.ENOTDIR: "a file has the name of a folder in this path; choose another place",
    errno.EEXIST: "a file has the name of a folder in this path; choose another place",
}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


class WriteError(CheckpointError):
    """A file or a folder that could not be written. What was there before is untouched."""


def write_atomically(file: Path, content: bytes, sync: bool = True) -> None:
    """Puts `content` at `file` as a whole or not at all, readable by whom the umask says; `sync` as `atomic_path`'s."""
    with atomic_stream(file, sync) as stream:
        stream.write(content)


def write_text(file: Path, text: str) -> None:
    """Text as UTF-8, its line ends as they are."""
    write_atomically(file, text.encode())


def write_texts(texts: Mapping[Path, str]) -> None:
    """Several files that belong together: none takes its place before all are complete, and then in their order."""
    with ExitStack() as stack:
        for file, text in reversed(list(texts.items())):  # what is entered last is left first
            stream = stack.enter_context(atomic_stream(file))
            stream.write(text.encode())
            stream.flush()  # fails here, if at all


def write_json(file: Path, data: Any, indent: int | None = 1) -> None:
    write_text(file, json.dumps(data, indent=indent, ensure_ascii=False) + "\n")


def write_json_lines(file: Path, rows: Iterable[Any]) -> None:
    """One value to a line."""
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@contextmanager
def atomic_path(file: Path, sync: bool = True) -> Iterator[Path]:
    """A path for a writer that wants one; what is there when the block ends well takes the place of `file`.

    Args:
        file: Where it belongs; its folder is made.
        sync: Wait until it is on the disk. Without it a power cut, not a kill, may leave it empty: for many small files
            that can be made again.
    """
    partial = _beside(file)
    try:
        with explained(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        with explained(file, inside=partial):
            yield partial
        with explained(file):
            if sync:
                _sync(partial)
            partial.replace(file)
    except BaseException:
        with suppress(OSError):  # it was never begun
            partial.unlink()
        raise


@contextmanager
def atomic_stream(file: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """A stream for large or streamed output, which takes the place of `file` when the block ends well."""
    with atomic_path(file, sync) as partial, partial.open("xb") as stream:
        yield stream


@contextmanager
def atomic_text(file: Path) -> Iterator[IO[str]]:
    """`atomic_stream` for text: UTF-8, its line ends as they are."""
    with atomic_stream(file) as stream, io.TextIOWrapper(stream, encoding="utf-8", newline="") as text:
        yield text


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder beside `folder`, which takes its place when the block ends well: all of it or nothing.

    What was in the old one is then gone, foreign files included. Anything that fails leaves it as it
    was. Where the file system cannot exchange two folders in one step, a kill between two renames leaves the old one
    under the name `.FOLDER.….partial`.
    """
    folder = folder.resolve()  # a link stays one
    fresh = _beside(folder)
    try:
        with explained(folder):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            fresh.mkdir(parents=True)
        try:
            with explained(folder, inside=fresh):
                yield fresh
        except WriteError as error:
            raise WriteError(str(error).replace(str(fresh), str(folder))) from error.__cause__
        with explained(folder):
            for path in (fresh, *fresh.rglob("*")):
                if not path.is_symlink():
                    _sync(path)
            _swap(fresh, folder)
            _sync(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # what failed, or what was there before


def make_folder(folder: Path) -> None:
    """The folder, and those above it, if they are not there."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def working_folder(file: Path) -> Iterator[Path]:
    """A folder beside `file` for what is in the making while the block lasts; its failures are those of `file`."""
    folder = _beside(file)
    with explained(file):
        folder.mkdir(parents=True)
    try:
        with explained(file, inside=folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_partials(*places: Path) -> None:
    """Removes what killed writers of these files or folders left beside them; only for who holds them (`only_run`).

    Long names are cut in the names of what is left, and may be those of others: these stay.
    """
    for place in places:
        left = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{8}}\.partial")
        with suppress(OSError):  # there is no such folder
            for path in place.parent.iterdir() if len(place.name) <= KEPT else ():
                if left.fullmatch(path.name):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _swap(fresh: Path, folder: Path) -> None:
    """`fresh` gets the name of `folder`, and the other way round where there is one."""
    if not folder.exists():
        fresh.rename(folder)
    elif not _exchange(fresh, folder):
        old = _beside(folder)
        folder.rename(old)
        try:
            fresh.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
        old.rename(fresh)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _beside(path: Path) -> Path:
    """A hidden name in the same folder; long names are cut, so that it is not too long where theirs is not."""
    whole = path if path.name else path.resolve()  # such as `.`
    return whole.with_name(f".{whole.name[:KEPT]}.{secrets.token_hex(4)}.partial")


def _sync(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path, inside: Path | None = None) -> Iterator[None]:
    """Failures to write `path`, in words; with `inside`, those alone that happen there, or because the disk is full."""
    try:
        yield
    except OSError as error:
        if inside is not None and error.errno not in _FULL and not str(error.filename).startswith(str(inside)):
            raise  # from something else that the block does
        why = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "check the path, or choose another place")
        raise WriteError(f"could not write {path}: {why}; {advice}.{_kept(path)}") from error


def append(stream: io.FileIO, data: bytes, sync: bool = False) -> None:
    """Writes all of `data` to a journal, which is open without a buffer: nothing is left to fail again at its close.

    With `sync` it is on the disk before anything that is written afterwards.

    What a full disk, or a kill, cuts off is a last line without its end: readers of journals pass it over.
    """
    rest = memoryview(data)
    with explained(Path(os.fsdecode(stream.name))):
        while rest:
            rest = rest[stream.write(rest) or 0 :]
        if sync:
            os.fsync(stream.fileno())


def open_journal(file: Path, mode: Literal["ab", "wb", "r+b"] = "ab") -> io.FileIO:
    """A file to which lines are added one by one with `append`; its folder is made."""
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open(mode, buffering=0)


def _kept(path: Path) -> str:
    with suppress(OSError):  # not even its folder can be read
        if path.exists():
            return f" The {'folder' if path.is_dir() else 'file'} that was there is untouched."
    return ""


def weights_file(path: Path) -> Path:
    """The file of a checkpoint or an LM, which may be a folder that holds it."""
    return path / "model.safetensors" if path.is_dir() else path


def file_hash(file: Path) -> str:
    """SHA-256 of a file's whole content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def short_hash(file: Path) -> str:
    """A hash of a file's size and of its first and last megabyte: quick, and another training gives another."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(EDGE)
        stream.seek(max(0, size - EDGE))
        last = stream.read(EDGE)
    return hashlib.sha256(f"{size}".encode() + first + last).hexdigest()[:16]
