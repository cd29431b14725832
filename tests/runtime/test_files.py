"""Files and folders are whole or not there; what cannot be written is said in one line, and leaves what was there."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ilme.errors import IlmeError
from ilme.runtime import files
from ilme.runtime.files import (
    WriteError,
    atomic_path,
    atomic_stream,
    atomic_text,
    remove_partials,
    replace_folder,
    working_folder,
    write_atomically,
    write_json,
    write_json_lines,
    write_text,
    write_texts,
)

FULL = "/dev/full"  # every write to it fails: no space left


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_text_and_json_are_utf8_and_their_folders_are_made(tmp_path):
    write_text(tmp_path / "a/b.txt", "é\r\n")
    write_json(tmp_path / "b.json", {"é": [1]})
    write_json_lines(tmp_path / "c.jsonl", [{"é": 1}, 2])
    assert (tmp_path / "a/b.txt").read_bytes() == "é\r\n".encode()
    assert (tmp_path / "b.json").read_text(encoding="utf-8") == '{\n "é": [\n  1\n ]\n}\n'
    assert [json.loads(line) for line in (tmp_path / "c.jsonl").read_text("utf-8").splitlines()] == [{"é": 1}, 2]


def test_texts_that_belong_together_are_all_there_or_none(tmp_path, monkeypatch):
    old = {tmp_path / "a": "1", tmp_path / "b": "2", tmp_path / "sub" / "c": "3"}
    write_texts(old)
    moved = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, to: (moved.append(to), replace(path, to))[1])
    write_texts({file: text * 2 for file, text in old.items()})
    assert moved == list(old) and [file.read_text() for file in old] == ["11", "22", "33"]
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"could not write .*file/d: "):
        write_texts({**old, tmp_path / "file" / "d": "4"})
    assert [file.read_text() for file in old] == ["11", "22", "33"]
    assert names(tmp_path) == ["a", "b", "file", "sub", "sub/c"]


def test_a_working_folder_is_gone_afterwards_and_its_failures_are_the_files(tmp_path):
    file = tmp_path / "model"
    with working_folder(file) as folder:
        (folder / "run").write_text("x")
        assert folder.parent == tmp_path
        remove_partials(file)  # as after a kill
        assert not folder.exists()
    with pytest.raises(WriteError, match=r"could not write .*model: No space left on device"), working_folder(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


@pytest.mark.parametrize("sync", [True, False])
def test_a_stream_appears_when_the_block_ends(tmp_path, sync):
    file = tmp_path / "x"
    with atomic_stream(file, sync) as stream:
        stream.write(b"half")
        stream.flush()
        assert not file.exists()
        stream.seek(0)
        stream.write(b"whole")
    assert file.read_bytes() == b"whole" and names(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), FileNotFoundError(2, "gone", "input.txt")])
def test_a_block_that_fails_leaves_what_was_there_and_keeps_its_error(tmp_path, error):
    write_text(tmp_path / "x", "old")
    (tmp_path / "folder").mkdir()
    for writer in (atomic_path, atomic_stream, atomic_text, replace_folder):
        file = tmp_path / ("folder" if writer is replace_folder else "x")
        with pytest.raises(type(error)) as caught, writer(file):
            raise error
        assert caught.value is error
    assert names(tmp_path) == ["folder", "x"] and (tmp_path / "x").read_text() == "old"


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    write_text(tmp_path / "x", "old")
    monkeypatch.setattr(files, "_beside", lambda path: Path(FULL))
    monkeypatch.setattr(Path, "unlink", lambda self: None)
    said = rf"could not write {tmp_path}/x: No space left on device; free some space.* The file that was there"
    with pytest.raises(WriteError, match=said) as caught, atomic_path(tmp_path / "x") as partial:
        partial.open("wb").write(bytes(1 << 20))
    assert isinstance(caught.value, IlmeError) and "\n" not in str(caught.value)
    assert (tmp_path / "x").read_text() == "old"


def test_a_place_that_cannot_be_says_what_to_do(tmp_path):
    write_text(tmp_path / "file", "")
    (tmp_path / "folder/inside").mkdir(parents=True)
    with pytest.raises(WriteError, match="a file has the name of a folder"):
        write_atomically(tmp_path / "file/x", b"")
    with pytest.raises(WriteError, match=r"a folder has this name.* The folder that was there is untouched"):
        write_atomically(tmp_path / "folder", b"")
    with pytest.raises(WriteError, match="a file has the name of a folder"), replace_folder(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["file", "folder", "folder/inside"]


def test_a_read_only_place_says_so(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(WriteError, match=r"x: Read-only file system; choose another place\.$"):
        write_atomically(tmp_path / "x", b"")


def test_a_long_name_is_no_obstacle(tmp_path):
    for name in ("x" * 255, "語" * 85):
        write_atomically(tmp_path / name, b"")
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder = tmp_path / "new/domain"
    for content in ("a", "b"):
        with replace_folder(folder) as fresh:
            assert not names(fresh) and fresh.parent == folder.parent
            write_text(fresh / f"{content}/{content}", content)
        assert names(tmp_path) == ["new", "new/domain", f"new/domain/{content}", f"new/domain/{content}/{content}"]


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replace_folder(tmp_path / "link") as fresh:
        write_text(fresh / "x", "")
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "real") == ["x"]


def test_a_folder_that_cannot_be_moved_in_place_comes_back(tmp_path, monkeypatch):
    folder = tmp_path / "domain"
    write_text(folder / "x", "old")
    plain = Path.rename

    def rename(self, target):
        if target == folder and ".partial" in self.name and (self / "x").read_text() == "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(self, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(WriteError, match="The folder that was there is untouched"), replace_folder(folder) as fresh:
        write_text(fresh / "x", "new")
    assert (folder / "x").read_text() == "old" and names(tmp_path) == ["domain", "domain/x"]


def test_an_error_in_a_folder_names_the_place_it_was_meant_for(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    domain = tmp_path / "domain"
    with (
        pytest.raises(WriteError, match=rf"could not write {domain}/x: No space") as caught,
        replace_folder(domain) as fresh,
    ):
        write_text(fresh / "x", "")
    assert isinstance(caught.value.__cause__, OSError)
    assert not names(tmp_path)


def test_killed_in_the_middle_the_old_one_is_there(tmp_path):
    write_text(tmp_path / "domain/x", "old")
    program = (
        "import sys, os, signal\nfrom pathlib import Path\nfrom ilme.runtime.files import replace_folder, write_text\n"
        "with replace_folder(Path(sys.argv[1])) as fresh:\n"
        "    write_text(fresh / 'x', 'new')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "domain")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "domain/x").read_text() == "old"


def test_what_a_killed_writer_left_is_taken_away_by_its_name_alone(tmp_path):
    names = (
        ".out.0123abcd.partial",
        ".out.partial",
        ".other.0123abcd.partial",
        "out.0123abcd.partial",
        ".out.x.partial",
    )
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".file.0123abcd.partial").write_text("half")
    long = "x" * 60
    (tmp_path / f".{long[:50]}.0123abcd.partial").write_text("of which of two long names?")
    remove_partials(tmp_path / "out", tmp_path / "file", tmp_path / "nowhere" / "x", tmp_path / long)
    assert {p.name for p in tmp_path.iterdir()} == {*names[1:], f".{long[:50]}.0123abcd.partial"}
