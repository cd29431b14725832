"""Names, folders and globs to files, and the names that their transcripts get."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.data.audio_files import find_audio
from ilme.errors import BadInputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("p/a.wav", "p/b.FLAC", "q/a.wav", "q/notes.txt", "q/a.mp3", "empty/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["p/a.wav"], ["a"]),
        (["p/a.wav", "q/a.wav"], ["a", "a"]),
        (["p", "empty/../p"], ["a", "b"]),
        (["p", "q"], ["a.wav", "b", "a.mp3", "a.wav"]),
        (["q/a.wav", "q/a.mp3"], ["a.wav", "a.mp3"]),
        (["p"], ["a", "b"]),
        (["."], ["p/a", "p/b", "q/a.mp3", "q/a.wav"]),
        (["**/*.wav"], ["p/a", "q/a"]),
        (["p/a.wav", "./p/a.wav", "q/../p/a.wav", "p/*.wav"], ["a"]),
        (["p/gone.wav", "p/a.wav"], ["gone", "a"]),
        (["empty", "p/a.wav"], ["empty", "a"]),
        (["z*", "p/a.wav"], ["z*", "a"]),
        (["p/*.wav", "q/*.mp3"], ["a.wav", "a.mp3"]),
        (["*/a.wav"], ["p/a", "q/a"]),
        (["p/../*/a.wav", "p/b.FLAC"], ["p/a", "q/a", "b"]),
    ],
)
def test_names_are_relative_and_different(folder: Path, patterns: list[str], names: list[str]) -> None:
    found = find_audio(patterns)
    assert [file.name for file in found] == names
    assert [file.name for file in find_audio([folder / p for p in patterns])] == names


def test_other_files_do_not_change_a_name(folder: Path) -> None:
    alone = {file.path: file.name for file in find_audio(["p"])}
    for more in (["q/notes.txt"], ["empty"], [str(folder.parent / "elsewhere.wav")], ["q/a.mp3", "q"]):
        beside = {file.path: file.name for file in find_audio(["p", *more])}
        stems = {name.removesuffix(".wav") for path, name in beside.items() if path in alone}
        assert stems == set(alone.values())


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([], "no audio was given"),
        (["empty"], r"empty holds no audio file \(\.wav"),
        (["z*", "empty"], r"no file matches z\*; empty holds no audio file"),
        ([""], "no file matches ''"),
    ],
)
def test_nothing_at_all_is_an_error(folder: Path, patterns: list[str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        find_audio(patterns)


def test_links_keep_their_names_and_broken_ones_are_found(folder: Path) -> None:
    (folder / "p" / "link.wav").symlink_to("a.wav")
    (folder / "p" / "broken.wav").symlink_to("nowhere")
    assert [file.name for file in find_audio(["p"])] == ["a", "b", "broken", "link"]
