"""Attacks on text: encodings, archives, manifests and places; `ilme text prepare`, `ilme report` and domain text."""

from __future__ import annotations

import bz2
import codecs
import functools
import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ilme.data.text import prepare
from ilme.data.textfiles import expand, sources
from ilme.data.tokenize import text_lines
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.data.utterances import Reference
from ilme.data.written_style import domain_lines
from ilme.errors import BadInputError
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.report.gather import gather_curves
from tests.attacks.cases import Case, attacks, check_call, check_command
from tests.checkpoints import write_checkpoints, write_wave

GOOD = "The whale rose slowly out of the grey water.\nNobody on the deck said a word.\n"
LINES = GOOD.splitlines()
DEEP = '{"text":' * 100_000 + "1" + "}" * 100_000


def file(data: bytes | str, name: str = "bad.txt") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return folder / name

    return make


def tar(count: int = 3, mode: str = "w") -> bytes:
    """An archive of texts t0.txt, t1.txt, …"""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for k in range(count):
            data = (f"This is the text with number {'abcdefgh'[k]}.\n" * 30).encode()
            member = tarfile.TarInfo(f"t{k}.txt")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def link(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "bad.txt").symlink_to(target)
        return folder / "bad.txt"

    return make


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "bad.txt")
    return folder / "bad.txt"


def nothing(name: str, make: Callable[[Path], Path], *words: str, full: bool = False) -> Case:
    """An input in which there is nothing to keep."""
    return Case(name, make, 1, words, full=full)


random_bytes = np.random.default_rng(0).bytes
EMPTY = [
    nothing("an empty file", file(b""), "0 sentences"),
    nothing("spaces", file(b" \n\t\n  \n"), "0 sentences"),
    nothing("a byte-order mark", file(codecs.BOM_UTF8), "0 sentences"),
    nothing("digits and marks without a letter", file("... --- !!!\n???\n"), "no letters"),
    nothing("random bytes", file(random_bytes(5000)), "bad.txt", "binary"),
    nothing("zeros", file(bytes(5000)), "bad.txt", "binary"),
    nothing("a PNG", file(b"\x89PNG\r\n\x1a\n" + random_bytes(3000)), "bad.txt", "binary"),
    nothing("an ELF", file(b"\x7fELF" + bytes(3000)), "bad.txt", "binary"),
    nothing("a ZIP", file(b"PK\x03\x04" + random_bytes(3000)), "bad.txt", "binary"),
    nothing("a gzip named .txt", file(gzip.compress(GOOD.encode() * 9)), "bad.txt", "binary"),
    nothing("a WAV", file(b"RIFF\x24\x7d\x00\x00WAVEfmt " + random_bytes(3000)), "bad.txt", "binary"),
    nothing("UTF-16 without a mark", file(GOOD.encode("utf-16-le")), "bad.txt", "binary"),
    nothing("UTF-32 without a mark", file(GOOD.encode("utf-32-be")), "bad.txt", "binary"),
    *(
        nothing(f"{what} named {ending}", file(data, f"bad{ending}"), f"bad{ending}")
        for ending in (".gz", ".xz", ".bz2", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
        for what, data in (("text", GOOD.encode()), ("nothing", b""), ("random bytes", random_bytes(3000)))
        if not (what == "nothing" and ending in (".gz", ".bz2"))
    ),
    nothing("an empty .gz", file(b"", "bad.gz"), "0 sentences"),
    nothing("a compressed nothing", file(gzip.compress(b""), "bad.gz"), "0 sentences"),
    nothing("an archive of nothing", file(tar(0), "bad.tar"), "0 sentences"),
    *(
        nothing(f"{what} in a manifest", file(line + "\n", "bad.jsonl"), "bad.jsonl, line 1", words)
        for what, line, words in (
            ("no JSON", "hello", "not JSON"),
            ("deep nesting", DEEP, "not JSON"),
            ("deep lists", "[" * 100_000, "not JSON"),
            ("a huge number", "9" * 5000, "not JSON"),
            ("a list", '["text"]', "no field 'text'"),
            ("null", "null", "no field 'text'"),
            ("another field", '{"txt": "x"}', "no field 'text'"),
            ("text of null", '{"text": null}', "no field 'text'"),
            ("text of a number", '{"text": 5}', "no field 'text'"),
            ("text of a list", '{"text": ["a"]}', "no field 'text'"),
            ("half a character", '{"text": "half \\ud800 a character"}', "surrogate"),
        )
    ),
    nothing("a line of a megabyte", file("x" * (1 << 20)), "too long", full=True),
]
MISSING = [
    nothing("a missing file", lambda f: f / "missing.txt", "no text file matches", "missing.txt"),
    nothing("a glob for nothing", lambda f: f / "*.txt", "no text file matches", "*.txt"),
    nothing("a folder", lambda f: f, "no text file matches", "**/*.txt"),
    nothing("a pipe", pipe, "no text file matches", "bad.txt", "a pipe"),
    nothing("a device", lambda _: Path("/dev/zero"), "no text file matches /dev/zero", "a device"),
    nothing("a link to a device", link("/dev/zero"), "no text file matches", "bad.txt"),
    nothing("a loop of links", link("bad.txt"), "no text file matches", "bad.txt"),
    nothing("a broken link", link("nowhere"), "no text file matches", "bad.txt", "broken link"),
    nothing("a name of 300 characters", lambda f: f / ("x" * 300), "no text file matches"),
    nothing("a path of 6,000 characters", lambda f: f / ("x/" * 3000), "no text file matches"),
]


def arguments(case: Case, *more: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["text", "prepare", str(case.make(folder)), *more, str(folder / "out")]


@attacks([*EMPTY, *MISSING])
def test_prepare_of_nothing_is_an_error_and_writes_nothing(case: Case, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.txt").write_text("of an earlier run\n")
    check_command(replace(case, make=arguments(case)), tmp_path)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["train.txt"]
    assert (tmp_path / "out" / "train.txt").read_text() == "of an earlier run\n"


@attacks(EMPTY)
def test_one_bad_file_costs_no_other(case: Case, tmp_path: Path) -> None:
    good = file(GOOD, "good.txt")(tmp_path)
    told = tuple(word for word in case.words if word.startswith("bad"))
    run = replace(
        case, make=arguments(case, str(good)), expect=0, words=told, done=("out/train.txt", "out/report.json")
    )
    check_command(run, tmp_path)
    assert len((tmp_path / "out" / "train.txt").read_text().splitlines()) >= len(LINES)


@attacks([c for c in EMPTY if c.words[0].startswith("bad")][::6])
def test_strict_ends_with_1(case: Case, tmp_path: Path) -> None:
    good = file(GOOD, "good.txt")(tmp_path)
    check_command(replace(case, make=arguments(case, str(good), "--strict"), words=("problem: ",)), tmp_path)


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "ascii", "latin-1", "cp1252"]
MARKED = {
    "UTF-16 BE": codecs.BOM_UTF16_BE + GOOD.encode("utf-16-be"),
    "UTF-32 LE": codecs.BOM_UTF32_LE + GOOD.encode("utf-32-le"),
    "UTF-32 BE": codecs.BOM_UTF32_BE + GOOD.encode("utf-32-be"),
}
READ = [
    *(Case(f"{e}, {name}", file(GOOD.replace("\n", end).encode(e)), 0)
      for e in ENCODINGS for name, end in (("Unix", "\n"), ("Windows", "\r\n"), ("old Mac", "\r"))),
    *(Case(name, file(data), 0) for name, data in MARKED.items()),
    Case("no line end at the end", file(GOOD.rstrip()), 0),
    Case("gzip", file(gzip.compress(GOOD.encode()), "bad.gz"), 0),
    Case("xz", file(lzma.compress(GOOD.encode()), "bad.xz"), 0),
    Case("bzip2", file(bz2.compress(GOOD.encode()), "bad.bz2"), 0),
    Case("two gzips in one", file(b"".join(gzip.compress(f"{line}\n".encode()) for line in LINES), "bad.gz"), 0),
    Case("a manifest", file("".join(json.dumps({"text": line}) + "\n" for line in LINES), "bad.jsonl"), 0),
    Case("a marked manifest", file(codecs.BOM_UTF8 + json.dumps({"text": " ".join(LINES)}).encode(), "bad.jsonl"), 0),
    Case("a name that is not UTF-8", file(GOOD, b"caf\xe9.txt".decode("utf-8", "surrogateescape")), 0),
    Case("a name of 250 characters", file(GOOD, "x" * 246 + ".txt"), 0),
    Case("a name with a glob in it", file(GOOD, "a[1]*.txt"), 0),
]  # fmt: skip


@attacks(READ)
def test_every_encoding_gives_the_same_lines(case: Case, tmp_path: Path) -> None:
    def read(path: Path) -> list[str]:
        report = prepare([str(path)], tmp_path / "out")
        assert report.train == len(LINES)
        return (tmp_path / "out" / "train.txt").read_text().splitlines()

    assert check_call(case, tmp_path, read) == [line.lower().rstrip(".") for line in LINES]


def problems_of(path: Path) -> tuple[list[str], list[str]]:
    """Names of the texts that can be read, and what is said about the others."""
    problems: list[str] = []
    texts = sources([path], lambda name, why: problems.append(f"{name}: {why}"))
    return [text.name for text in texts if len(list(text.lines)) == 30], problems


ARCHIVE, MEMBER = tar(), 1536  # bytes of one text and its header
COMPRESSED = {
    ".tar": ARCHIVE,
    ".tar.gz": gzip.compress(ARCHIVE),
    ".tar.xz": lzma.compress(ARCHIVE),
    ".tar.bz2": bz2.compress(ARCHIVE),
}
ENDS = {
    "in a header": MEMBER + 100,
    "after a header": MEMBER + 512,
    "in a text": MEMBER + 700,
    "after a text": MEMBER,
    "at once": 100,
}
TRUNCATED = [
    *(Case(f"{ending} cut to {share:.0%}", file(data[: int(share * len(data))], f"a{ending}"), 0, full=share < 0.5)
      for ending, data in COMPRESSED.items() for share in (0.2, 0.3, 0.5, 0.7, 0.9) if ending != ".tar" or share < 0.4),
    *(Case(f".tar cut {where}", file(ARCHIVE[:length], "a.tar"), 0) for where, length in ENDS.items()),
    *(Case(f"{ending} without its last bytes", file(data[:-12], f"a{ending}"), 0)
      for ending, data in COMPRESSED.items() if ending != ".tar"),
]  # fmt: skip


@attacks(TRUNCATED)
def test_an_archive_that_is_cut_off_is_told(case: Case, tmp_path: Path) -> None:
    _, problems = check_call(case, tmp_path, problems_of)
    assert problems and all(str(tmp_path) in problem for problem in problems)


@pytest.mark.parametrize("ending", COMPRESSED)
def test_whole_archives_are_read_whatever_their_name(ending: str, tmp_path: Path) -> None:
    for name in (f"a{ending}", "b.tar", "c.tgz"):
        names, problems = problems_of(file(COMPRESSED[ending], name)(tmp_path))
        assert len(names) == 3 and not problems


def test_text_that_must_be_whole_stops_at_a_damaged_archive(tmp_path: Path) -> None:
    path = file(ARCHIVE[:MEMBER], "a.tar")(tmp_path)
    with pytest.raises(BadInputError, match=r"a\.tar the archive is cut off.*; prepare it first"):
        list(text_lines([str(path)]))


@pytest.mark.parametrize("seed", [pytest.param(s, marks=(pytest.mark.attacks,) if s > 7 else ()) for s in range(60)])
def test_damaged_archives_are_read_or_told(seed: int, tmp_path: Path) -> None:
    """Bytes changed at random: no error of another kind, and no text is lost without a word."""
    draw = np.random.default_rng(seed)
    ending = list(COMPRESSED)[seed % 4]
    data = bytearray(COMPRESSED[ending])
    for place in draw.integers(0, len(data) if ending != ".tar" else 512, 3):
        data[place] = draw.integers(256)
    names, problems = problems_of(file(bytes(data), f"a{ending}")(tmp_path))
    assert problems or len(names) == 3


# --- word pieces and token files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "bpe.model"
    SentencePieceTokenizer.train(LINES * 9, 40).save(path)
    return path


WORDS = [
    Case("bpe of nothing", lambda _: ["bpe", "empty.txt", "m"], 1, ("no text",)),
    Case("bpe of bytes", lambda _: ["bpe", "bytes.txt", "m"], 1, ("bytes.txt", "binary", "ilme text prepare")),
    Case("bpe of what is missing", lambda _: ["bpe", "gone.txt", "m"], 1, ("no text file matches gone.txt",)),
    Case("bpe into a folder", lambda _: ["bpe", "good.txt", "."], 2, (". is a folder", "name the file")),
    Case("bpe of no piece", lambda _: ["bpe", "good.txt", "m", "--vocab_size", "0"], 2, ("--vocab_size", "0")),
    Case("bpe of negative size", lambda _: ["bpe", "good.txt", "m", "--vocab_size", "-5"], 2, ("--vocab_size", "-5")),
    Case("bpe of too many pieces", lambda _: ["bpe", "good.txt", "m", "--vocab_size", "99999"], 1, ("99999",)),
    Case("bpe without threads", lambda _: ["bpe", "good.txt", "m", "--threads", "0"], 2, ("--threads",)),
    Case("tokenize nothing", lambda _: ["tokenize", "empty.txt", "PIECES", "t"], 1, ("empty.txt", "no text")),
    Case("tokenize bytes", lambda _: ["tokenize", "bytes.txt", "PIECES", "t"], 1, ("bytes.txt", "binary")),
    Case("tokenize with a text", lambda _: ["tokenize", "good.txt", "good.txt", "t"], 1, ("no sentencepiece model",)),
    Case("tokenize with nothing", lambda _: ["tokenize", "good.txt", "gone.model", "t"], 1, ("gone.model",)),
    Case("tokenize into a folder", lambda _: ["tokenize", "good.txt", "PIECES", "."], 2, (". is a folder",)),
    Case("tokenize without threads", lambda _: ["tokenize", "good.txt", "PIECES", "t", "--threads", "-1"], 2),
    Case("exclude nothing", lambda _: ["prepare", "good.txt", "out", "--exclude", "empty.txt"], 1, ("empty.txt",)),
    Case("exclude bytes", lambda _: ["prepare", "good.txt", "out", "--exclude", "bytes.txt"], 1, ("bytes.txt",)),
    Case("exclude what is missing", lambda _: ["prepare", "good.txt", "out", "--exclude", "x"], 1, ("matches x",)),
    Case(
        "exclude everything",
        lambda _: ["prepare", "good.txt", "out", "--exclude", "good.txt", "--options.exclude_ngram", "5"],
        1,
        ("2 excluded",),
    ),
    Case("prepare into a file", lambda _: ["prepare", "good.txt", "good.txt"], 1, ("good.txt", "choose another")),
    Case("hold all out", lambda _: ["prepare", "good.txt", "out", "--options.hold_out", "1"], 2, ("hold_out",)),
    Case(
        "sentences of no word", lambda _: ["prepare", "good.txt", "out", "--options.min_words", "0"], 2, ("min_words",)
    ),
    Case(
        "sentences too long", lambda _: ["prepare", "good.txt", "out", "--options.min_words", "99"], 1, ("too short",)
    ),
]


@attacks(WORDS)
def test_text_commands(case: Case, pieces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(GOOD, "good.txt")(tmp_path)
    file(b"", "empty.txt")(tmp_path)
    file(random_bytes(3000), "bytes.txt")(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["text", *(str(pieces) if word == "PIECES" else word for word in case.make(tmp_path))]
    check_command(replace(case, make=lambda _: words), tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["bytes.txt", "empty.txt", "good.txt"]


# --- domain text ------------------------------------------------------------------------------------------------------


@attacks([c for c in EMPTY if "no letters" not in c.words and "too long" not in c.words][::3])
def test_domain_text_of_nothing(case: Case, tmp_path: Path) -> None:
    wanted = replace(case, expect=BadInputError, words=("the text holds no sentence",))
    check_call(wanted, tmp_path, lambda path: domain_lines([str(path)]))


@attacks(MISSING)
def test_domain_text_that_is_missing(case: Case, tmp_path: Path) -> None:
    check_call(replace(case, expect=BadInputError), tmp_path, lambda path: expand([str(path)]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("model"), ["rnnt"]) / "rnnt"


@attacks(
    [
        Case("one word", file("whale"), 1, ("holds 1 words in 1 lines", "at least 20 words")),
        Case("one word often", file("whale\n" * 19), 1, ("holds 19 words", "at least 20 words")),
        Case("two sentences", file(GOOD), 1, ("holds 16 words", "at least 20 words")),
        Case("a word in an archive", file(gzip.compress(b"whale"), "bad.gz"), 1, ("holds 1 words",)),
        Case("another script", file("鯨が海を泳ぐ。\n" * 50), 1, ("language or script",)),
        *(c for c in EMPTY if c.name in ("an empty file", "random bytes", "zeros", "text named .tar.gz")),
        *(c for c in MISSING if c.name in ("a missing file", "a folder", "a pipe")),
    ]
)
def test_what_is_no_domain_makes_none(case: Case, model: Path, tmp_path: Path) -> None:
    def arguments(folder: Path) -> list[str]:
        return ["adapt", "--model", str(model), "--text", str(case.make(folder)), "--out", str(folder / "domain")]

    words = ("the text holds no sentence",) if case in EMPTY else case.words
    check_command(replace(case, make=arguments, words=words), tmp_path)
    assert not (tmp_path / "domain").exists()


# --- reports ----------------------------------------------------------------------------------------------------------


@functools.cache
def metrics(**fields: Any) -> str:
    return json.dumps({"step": 1, "hours": 0.5, "ilm_ppl": 9.0, **fields}) + "\n"


CURVES = [
    Case("a missing file", lambda f: f / "metrics.jsonl", BadInputError, ("there is no metrics.jsonl",)),
    Case("a folder without one", lambda f: f, BadInputError, ("there is no metrics.jsonl",)),
    Case("nothing", file(b""), BadInputError, ("bad.txt", "ilm_ppl")),
    Case("not JSON", file("hello\n"), BadInputError, ("bad.txt, line 1",)),
    Case("deep nesting", file(DEEP + "\n"), BadInputError, ("bad.txt, line 1",)),
    Case("a list", file("[1]\n"), BadInputError, ("bad.txt, line 1", "object")),
    Case("null", file("null\n"), BadInputError, ("bad.txt, line 1", "object")),
    Case("bytes", file(random_bytes(500) + b"\n"), BadInputError, ("bad.txt, line",)),
    *(
        Case(f"{key} is {value!r}", file(metrics(**{key: value})), BadInputError, ("bad.txt", key))
        for key in ("ilm_ppl", "hours", "source_lm_ppl")
        for value in ("x", float("nan"), float("inf"), True)
    ),
    Case("no step and no hours", file('{"ilm_ppl": 5}\n'), BadInputError, ("bad.txt", "step")),
    Case("hours on some lines", file(metrics() + '{"step": 2, "ilm_ppl": 5}\n'), 0),
    Case("a last line cut off", file(metrics() + metrics()[:20]), 0),
]


@attacks(CURVES)
def test_curves(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, lambda path: gather_curves([path]))


RECORDINGS: dict[str, Callable[[Path], Path]] = {
    "text": file(GOOD, "bad.wav"),
    "nothing": file(b"", "bad.wav"),
    "text named .mp3": file(GOOD, "bad.mp3"),
    "a pipe": pipe,
    "a folder": lambda folder: folder,
    "a device": lambda _: Path("/dev/zero"),
    "a loop of links": link("bad.txt"),
    "a long name": lambda folder: folder / ("x" * 300),
    "a missing file": lambda folder: folder / "gone.wav",
}


@pytest.mark.parametrize("kind", RECORDINGS)
def test_a_bad_recording_does_not_stop_a_report(kind: str, tmp_path: Path) -> None:
    audio = [str(RECORDINGS[kind](tmp_path)), *(str(write_wave(tmp_path / f"{k}.wav", 0.3, k)) for k in range(2))]
    references = {f"u{k}": Reference(LINES[k % 2], "ann", 0.3, path) for k, path in enumerate(audio)}
    system = System("rnnt", "BS", FusionWeights(), dict.fromkeys(references, "the whale"))
    Results("dev", "spoken", references, (system,)).save(tmp_path / "results.json")
    words = ["report", str(tmp_path / "results.json"), "--out", str(tmp_path / "report.html")]
    check_command(Case(kind, lambda _: words, 0, done=("report.html",)), tmp_path)
    assert (tmp_path / "report.html").read_text().count("data:audio/ogg") == 2
