"""Lists of phrases, and words that are suggested: what cannot be a list is said by file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.lm.phrase_list import read_phrases
from tests.attacks.cases import Case, attacks, check_call, check_command
from tests.checkpoints import write_checkpoints, write_wave


def listed(content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = folder / "names.txt"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return make


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "names.txt")
    return folder / "names.txt"


def loop(folder: Path) -> Path:
    (folder / "names.txt").symlink_to("names.txt")
    return folder / "names.txt"


WEIGHT = ("names.txt, line 1", "must be a number above 0")
NONE = ("names.txt holds no phrases", "one a line")
CASES = [
    *(Case(f"nothing but {what}", listed(content), BadInputError, NONE)
      for what, content in {"nothing": "", "comments": "# a\n\n#b\n", "tabs": "\t\t\n", "a mark": "\ufeff"}.items()),
    *(Case(f"a weight of {w}", listed(f"whale\t{w}\n"), BadInputError, WEIGHT)
      for w in ("nan", "inf", "-inf", "-1", "0", "-0.0", "1e9", "100.01", "1e-400")),
    *(Case(f"a weight that is {w!r}", listed(f"whale\t{w}\n"), BadInputError, ("line 1", "a tab and a number"))
      for w in ("x", "1\t2", "0x10", "1,5", "--1", "1e")),
    *(Case(f"a phrase of {what}", listed(f"whale\n{text}\n"), BadInputError, ("line 2", "a phrase is words"))
      for what, text in {"a whale": "\U0001f40b", "marks": "?!", "spaces that have no width": "\u200b\u200b"}.items()),
    Case("a phrase of a megabyte", listed("a" * (1 << 20)), BadInputError, ("line 1", "at most 200 characters")),
    Case("a phrase of marks upon marks", listed("e" + "\u0301" * 500), BadInputError, ("line 1", "at most 200")),
    Case("UTF-16", listed("whale\n".encode("utf-16")), BadInputError, ("names.txt is not UTF-8",)),
    Case("Latin-1", listed(b"caf\xe9\n"), BadInputError, ("names.txt is not UTF-8", "byte 3")),
    Case("half a character", listed(b"whale \xed\xa0\x80\n"), BadInputError, ("names.txt is not UTF-8",)),
    Case("a pipe", pipe, BadInputError, ("names.txt is no regular file",)),
    Case("a folder", lambda folder: folder, BadInputError, ("is no regular file",)),
    Case("a device without end", lambda _: Path("/dev/zero"), BadInputError, ("/dev/zero is no regular file",)),
    Case("no file", lambda folder: folder / "gone.txt", BadInputError, ("there is no file of phrases", "gone.txt")),
    Case("a link to itself", loop, (BadInputError, OSError), ("names.txt",)),  # type: ignore[arg-type]
    Case("a mark at the beginning", listed("\ufeffwhale\n"), 0),
    Case("ends of lines of all systems", listed("whale\r\nsea\rcalm\x0bship\u2028boat\n"), 0),
    Case("a weight without a number", listed("whale\t\n"), 0),
    Case("the same phrase a thousand times", listed("whale\n" * 1000), 0),
    Case("bytes that are no words beside words", listed("wh\x00ale \x1b[31m\n"), 0),
]  # fmt: skip


@attacks(CASES)
def test_lists(case: Case, tmp_path: Path) -> None:
    found = check_call(case, tmp_path, read_phrases)
    if not case.expect:
        assert {p.text for p in found} & {"whale", "wh ale [31m", "wh ale"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoints(tmp_path_factory.mktemp("models"), ["rnnt"])
    write_wave(folder / "a.wav", 0.5)
    return folder


SUGGESTED = [
    Case("no text", lambda f: [listed("")(f)], 1, ("no word of 3 to 200 letters",)),
    Case("one word of a megabyte", lambda f: [listed("a" * (1 << 20))(f)], 1, ("no word of 3 to 200 letters",)),
    Case("words that stand there once", lambda f: [listed("whelm seam lase")(f)], 1, ("2 times or more",)),
    Case("a binary file", lambda f: [listed(bytes(range(256)) * 20)(f)], 1, ("names.txt is binary",)),
    Case("a pipe", lambda f: [pipe(f)], 1, ("is a pipe, a device or a broken link",)),
    Case("a device without end", lambda _: ["/dev/zero"], 1, ("is a pipe, a device or a broken link",)),
    Case("a file that is not there", lambda _: ["gone.txt"], 1, ("no text file matches gone.txt",)),
    Case("no word at all", lambda f: [listed("whelm")(f), "--count", "0"], 2, ("at least 1",)),
    Case("words that never stand there", lambda f: [listed("whelm")(f), "--least", "-3"], 2, ("at least 1",)),
    Case("an empty name", lambda _: [""], 1, ("no text file matches ''",)),
]


@attacks(SUGGESTED)
def test_suggestions(case: Case, models: Path, tmp_path: Path) -> None:
    def words(folder: Path) -> list[str]:
        return ["phrases", "suggest", *map(str, case.make(folder)), "--model", str(models / "rnnt")]

    check_command(Case(case.name, words, case.expect, case.words), tmp_path)


@pytest.mark.parametrize(("content", "told"), [("鯨\n", "can write none of the phrases"), ("", "holds no phrases")])
def test_no_audio_is_read_with_a_list_of_nothing(content: str, told: str, models: Path, tmp_path: Path) -> None:
    file = listed(content)(tmp_path)
    words = ["transcribe", str(models / "a.wav"), "--model", str(models / "rnnt"), "--phrases", str(file),
             "--out", str(tmp_path / "out")]  # fmt: skip
    check_command(Case("", lambda _: words, 1, (told,)), tmp_path)
    assert not list(tmp_path.rglob("*.txt"))[1:]
