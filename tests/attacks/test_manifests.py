"""Attacks on dev and test manifests: every wrong field is an error that names the line, before any work starts."""

from __future__ import annotations

import codecs
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ilme.data.manifests import open_cuts
from ilme.data.utterances import Utterance, read_utterances
from ilme.errors import BadInputError
from tests.attacks.cases import Case, attacks, check_call, check_command
from tests.checkpoints import write_checkpoints

ROW = {"audio_filepath": "a.wav", "text": "hello there", "duration": 1.0, "speaker": "ann"}
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def with_audio(folder: Path, seconds: float = 1.0) -> Path:
    soundfile.write(folder / "a.wav", np.zeros(int(16000 * seconds), np.float32), 16000)
    return folder


def lines(*rows: Any, name: str = "dev.jsonl") -> Callable[[Path], Path]:
    """A manifest of rows: objects, or lines as they stand."""
    content = b"".join(
        (r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode()) + b"\n" for r in rows
    )

    def make(folder: Path) -> Path:
        (with_audio(folder) / name).write_bytes(content)
        return folder / name

    return make


def field(key: str, value: Any) -> Callable[[Path], Path]:
    """A good line, then one with a wrong field."""
    return lines(ROW | {"id": "good"}, ROW | {"id": "bad", key: value})


def raw(key: str, value: str) -> Callable[[Path], Path]:
    """The same, with JSON that `json.dumps` would not write."""
    return lines(
        ROW | {"id": "good"}, json.dumps(ROW | {"id": "bad", key: 0}).replace(f'"{key}": 0', f'"{key}": {value}')
    )


def wrong(name: str, make: Callable[[Path], Path], *words: str, full: bool = False) -> Case:
    return Case(name, make, BadInputError, ("dev.jsonl", *words), full=full)


TYPES: dict[str, Any] = {"a list": ["a"], "an object": {"a": 1}, "true": True, "a fraction": 1.5}
NUMBERS: dict[str, Any] = {"a text": "1.0", "a list": [1.0], "an object": {}, "true": True, "negative": -0.5}
RAW_NUMBERS = {
    "NaN": "NaN",
    "infinite": "Infinity",
    "minus infinite": "-Infinity",
    "1e999": "1e999",
    "long": "9" * 5000,
}
SURROGATE = "half a \ud800 character"
SPOKEN = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 1.0, "text": "hello", "speaker": "ann"}
FIELDS = [
    *(wrong(f"{key} is {name}", field(key, value), "line 2", key)
      for key in ("audio_filepath", "text", "id", "speaker", "split") for name, value in TYPES.items()),
    *(wrong(f"{key} is {name}", field(key, value), "line 2", key)
      for key in ("duration", "offset") for name, value in NUMBERS.items()),
    *(wrong(f"{key} is {name}", raw(key, value), "line 2")
      for key in ("duration", "offset") for name, value in RAW_NUMBERS.items()),
    *(wrong(f"a lone surrogate in {key}", field(key, SURROGATE), "line 2", key, "surrogate")
      for key in ("audio_filepath", "text", "id", "speaker", "split")),
    wrong("text is null", field("text", None), "line 2", "text"),
    wrong("text is a number", field("text", 5), "line 2", "text"),
    wrong("no text", lines(ROW, {"audio_filepath": "a.wav"}), "line 2", "text"),
    wrong("no audio_filepath on the first line", lines({"text": "x"}, ROW), "audio_filepath", "'text'"),
    wrong("no audio_filepath on the second line", lines(ROW, {"text": "x"}), "line 2", "audio_filepath"),
    wrong("audio_filepath is null", field("audio_filepath", None), "line 2", "audio_filepath"),
    wrong("audio_filepath is empty", field("audio_filepath", ""), "line 2", "audio_filepath"),
    wrong("audio_filepath is a dot", field("audio_filepath", "."), "line 2", "audio_filepath"),
    wrong("audio_filepath is a number", field("audio_filepath", 7), "line 2", "no file"),
    wrong("a zero byte in audio_filepath", field("audio_filepath", "a\0.wav"), "line 2", "no file"),
    wrong("audio_filepath of 5,000 characters", field("audio_filepath", "x" * 5000), "line 2", "too long"),
    wrong("an id twice", lines(ROW, ROW), "'a' comes twice"),
    wrong("a duration of 0", field("duration", 0), "line 2", "duration"),
    wrong("a duration of a millisecond", field("duration", 0.001), "line 2", "duration"),
    wrong("a duration of 1e-300", field("duration", 1e-300), "line 2", "duration"),
    wrong("a duration of an hour", field("duration", 3600), "line 2", "ends after 1 s"),
    wrong("a duration of 1.6 s of 1", field("duration", 1.6), "line 2", "ends after 1 s"),
    wrong("an offset past the end", field("offset", 5), "line 2", "ends after 1 s"),
    wrong("offset at the end", lines(ROW, {"audio_filepath": "a.wav", "text": "", "offset": 1, "id": "b"}), "line 2"),
    wrong("offset and duration past the end", field("offset", 0.9), "line 2", "ends after 1 s"),
    wrong("an offset of 1e300", field("offset", 1e300), "line 2", "ends after 1 s"),
    wrong("a missing recording", field("audio_filepath", "missing.wav"), "line 2", "there is no file", "missing.wav"),
    wrong("a recording that is a folder", field("audio_filepath", "../"), "line 2", "is a folder"),
    wrong("a recording that is a device", field("audio_filepath", "/dev/zero"), "line 2", "is a device"),
    wrong("a recording that is text", field("audio_filepath", "dev.jsonl"), "line 2", "cannot be read as audio"),
]  # fmt: skip
SHAPES = [
    wrong("nothing", lines(), "no utterances"),
    wrong("blank lines only", lines("", "  ", "\t", ""), "no utterances"),
    wrong("a byte-order mark only", lines(codecs.BOM_UTF8), "no utterances"),
    wrong("not JSON", lines("hello"), "line 1"),
    wrong("not JSON on the second line", lines(ROW, "hello"), "line 2"),
    wrong("a line cut off", lines(ROW, json.dumps(ROW)[:-9]), "line 2"),
    wrong("two objects on a line", lines(ROW, json.dumps(ROW) * 2), "line 2"),
    wrong("a list", lines([ROW]), "line 1"),
    wrong("a list over several lines", lines("[", ROW, "]"), "line 1"),
    wrong("null", lines("null"), "line 1"),
    wrong("a number", lines("5"), "line 1"),
    wrong("a text", lines('"audio_filepath"'), "line 1"),
    wrong("an empty object", lines({}), "neither an utterance"),
    wrong("single quotes", lines(str(ROW)), "line 1"),
    wrong("a comma at the end", lines(json.dumps(ROW)[:-1] + ",}"), "line 1"),
    wrong("a comment", lines("# utterances", ROW), "line 1"),
    wrong("CSV", lines("audio_filepath,text", "a.wav,hello"), "line 1"),
    wrong("deep nesting", lines(DEEP), "line 1"),
    wrong("deep nesting after a good line", lines(ROW, DEEP), "line 2"),
    wrong("deep lists", lines("[" * 100_000), "line 1"),
    wrong("deep nesting in a field", lines(json.dumps(ROW)[:-1] + ', "custom": ' + DEEP + "}"), "line 1"),
    wrong("a number of 5,000 digits", lines("9" * 5000), "line 1"),
    wrong(
        "Latin-1", lines(json.dumps(ROW | {"text": "café"}, ensure_ascii=False).encode("latin-1")), "line 1", "UTF-8"
    ),
    wrong("UTF-16", lines(json.dumps(ROW).encode("utf-16")), "line 1", "UTF-8"),
    wrong("random bytes", lines(np.random.default_rng(0).bytes(3000)), "dev.jsonl"),
    wrong("a line of 16 MB", lines(b'{"a": "' + b"x" * (1 << 24) + b'"}'), "longer than", full=True),
    wrong("an unknown object", lines({"wav": "a.wav", "txt": "x"}), "'wav'", "'txt'"),
]
PLACES = [
    Case("a missing manifest", lambda f: f / "dev.jsonl", BadInputError, ("there is no manifest", "dev.jsonl")),
    Case("an empty folder", lambda f: f, BadInputError, ("there is no manifest",)),
    Case("a folder of audio", with_audio, BadInputError, ("there is no manifest",)),
    Case("a recording", lambda f: with_audio(f) / "a.wav", BadInputError, ("a.wav", "line 1")),
    Case("a device", lambda _: Path("/dev/zero"), BadInputError, ("there is no manifest", "/dev/zero")),
    Case("a name of 300 characters", lambda f: f / ("x" * 300), BadInputError, ("there is no manifest",)),
    Case("a zero byte in the name", lambda f: f / "a\0b", BadInputError, ("there is no manifest",)),
]


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "dev.jsonl")
    return folder / "dev.jsonl"


def loop(folder: Path) -> Path:
    (folder / "dev.jsonl").symlink_to("dev.jsonl")
    return folder / "dev.jsonl"


PLACES += [
    Case("a pipe", pipe, BadInputError, ("there is no manifest", "dev.jsonl")),
    Case("a loop of links", loop, BadInputError, ("there is no manifest", "dev.jsonl")),
]


def compressed(cut: int | None, data: bytes | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        whole = gzip.compress("".join(json.dumps(ROW | {"id": str(k)}) + "\n" for k in range(99)).encode())
        (with_audio(folder) / "cuts.jsonl.gz").write_bytes(whole[:cut] if data is None else data)
        return folder

    return make


def cut(**changes: Any) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": "a.wav"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}
    row = {"id": "c", "start": 0.0, "duration": 1.0, "channel": 0, "supervisions": [SPOKEN], "recording": recording}
    return row | {"type": "MonoCut"} | changes


def cuts(*rows: dict[str, Any]) -> Callable[[Path], Path]:
    """Cuts whose recording is a.wav of the folder."""

    def make(folder: Path) -> Path:
        audio = json.dumps(str(with_audio(folder) / "a.wav"))
        content = "".join(json.dumps(row) + "\n" for row in rows).replace('"a.wav"', audio)
        (folder / "dev.jsonl").write_text(content)
        return folder / "dev.jsonl"

    return make


CUTS = [
    Case("a .gz cut off", compressed(-40), BadInputError, ("cuts.jsonl.gz", "cannot be read to its end")),
    Case("half a compressed manifest", compressed(100), BadInputError, ("cuts.jsonl.gz", "cannot be read to its end")),
    Case("no gzip", compressed(None, b"hello\n"), BadInputError, ("cuts.jsonl.gz", "cannot be read")),
    Case("an empty .gz", compressed(None, b""), BadInputError, ("cuts.jsonl.gz", "no utterances")),
    wrong("a cut without an id", cuts({k: v for k, v in cut().items() if k != "id"}), "line 1", "id"),
    wrong("a cut of unknown type", cuts(cut(type="Cat")), "line 1", "Cat"),
    wrong("a cut whose type is a number", cuts(cut(type=5)), "line 1", "type"),
    wrong("a cut without a type", cuts({k: v for k, v in cut().items() if k != "type"}), "line 1", "type"),
    wrong("a cut that is a recording", cuts(cut(type="MonoCut", sources=[], sampling_rate=1)), "line 1"),
    wrong("a cut of negative start", cuts(cut(start=-1)), "line 1", "start"),
    wrong("a cut of duration NaN", cuts(cut(duration=float("nan"))), "line 1", "duration"),
    wrong("a cut of duration 0", cuts(cut(duration=0)), "line 1", "duration"),
    wrong("a cut of infinite duration", cuts(cut(duration=float("inf"))), "line 1", "duration"),
    wrong("a cut of duration null", cuts(cut(duration=None)), "line 1", "duration"),
    wrong("a cut past the end", cuts(cut(start=5)), "line 1", "ends after 1 s"),
    wrong("a cut longer than its recording", cuts(cut(duration=9)), "line 1", "ends after 1 s"),
    wrong("supervisions of another type", cuts(cut(supervisions="x")), "line 1", "supervisions"),
    wrong("supervisions of numbers", cuts(cut(supervisions=[1])), "line 1", "supervisions"),
    wrong("a supervision without fields", cuts(cut(supervisions=[{}])), "line 1"),
    wrong("a supervision of a list", cuts(cut(supervisions=[SPOKEN | {"text": ["a"]}])), "line 1", "text"),
    wrong("a surrogate", cuts(cut(supervisions=[SPOKEN | {"text": SURROGATE}])), "line 1", "surrogate"),
    wrong("a recording of another type", cuts(cut(recording=[])), "line 1"),
    wrong("a recording without a source", cuts(cut(recording=cut()["recording"] | {"sources": []})), "line 1"),
    wrong("a recording that is missing", cuts(cut(recording=cut()["recording"] | {"sources": [
        {"type": "file", "channels": [0], "source": "missing.wav"}]})), "line 1", "missing.wav"),
    wrong("the second cut is wrong", cuts(cut(), cut(id="d", start=-1)), "line 2", "start"),
    wrong("two cuts of one id", cuts(cut(), cut()), "'c' comes twice"),
]  # fmt: skip
REFUSED = [*FIELDS, *SHAPES, *PLACES, *CUTS]


@attacks(REFUSED)
def test_wrong_manifests(case: Case, tmp_path: Path) -> None:
    error = check_call(case, tmp_path, read_utterances)
    assert "\n" not in str(error) and len(str(error).replace(str(tmp_path), "")) < 6000


ACCEPTED = [
    Case("a byte-order mark", lines(codecs.BOM_UTF8 + json.dumps(ROW).encode()), 0),
    Case("Windows line ends", lines(json.dumps(ROW) + "\r"), 0),
    Case("blank lines between", lines("", ROW, "  ", ROW | {"id": "b"}, ""), 0),
    Case("numbers as names", lines(ROW | {"id": 7, "speaker": 3}), 0),
    Case("fields that are null", lines(ROW | {"id": None, "speaker": None, "duration": None, "offset": None}), 0),
    Case("no duration", lines({"audio_filepath": "a.wav", "text": "x"}), 0),
    Case("an offset without a duration", lines({"audio_filepath": "a.wav", "text": "x", "offset": 0.5}), 0),
    Case("a rounded duration", lines(ROW | {"duration": 1.04}), 0),
    Case("the first 25 ms", lines(ROW | {"duration": 0.025}), 0),
    Case("an empty text", lines(ROW | {"text": ""}), 0),
    Case("text of every plane", lines(ROW | {"text": "日本語 🐋 \u202e \x00 é"}), 0),
    Case("a field that nobody knows", lines(ROW | {"custom": {"a": [1, None]}}), 0),
    Case("an absolute path", lambda f: lines(ROW | {"audio_filepath": str(f / "a.wav")})(f), 0),
    Case("the ending .json", lines(ROW, name="dev.json"), 0),
    Case("another ending", lines(ROW, name="dev.manifest"), 0),
    Case("a folder with manifest.jsonl", lambda f: lines(ROW, name="manifest.jsonl")(f).parent, 0),
    Case("utterances in cuts.jsonl.gz", compressed(None), 0),
    Case("cuts", cuts(cut(), cut(id="d", start=0.25, duration=0.5)), 0),
]


@attacks(ACCEPTED)
def test_odd_manifests_are_read(case: Case, tmp_path: Path) -> None:
    found: list[Utterance] = check_call(case, tmp_path, read_utterances)
    for utterance in found:
        assert utterance.text.encode() is not None
        assert 0 < len(utterance.samples(16000)) <= 16000


@attacks([c for c in CUTS if "cuts.jsonl.gz" not in c.words and c.name.startswith(("a cut", "a superv", "superv"))])
def test_cuts_that_are_read_one_by_one(case: Case, tmp_path: Path) -> None:
    """Training, splitting and showing read cuts lazily: what is wrong with one is told then."""
    if "ends after 1 s" in case.words:
        pytest.skip("lengths are compared when a set is read to be decoded")
    check_call(case, tmp_path, lambda path: list(open_cuts(path)))


def test_a_limit_below_zero(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="limit must be at least 0, not -1"):
        read_utterances(lines(ROW)(tmp_path), limit=-1)


def test_only_recordings_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    path = lines(ROW, ROW | {"id": "b", "audio_filepath": "gone.wav", "split": "x"})(tmp_path)
    assert len(read_utterances(path, limit=1)) == 1
    with pytest.raises(BadInputError, match=r"line 2: there is no file .*gone\.wav"):
        read_utterances(path, split="x")


# --- ilme evaluate ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("model"), ["rnnt"]) / "rnnt"


SAMPLE = ("text is a list", "offset is NaN", "deep nesting", "blank lines only", "a missing recording", "null")


@attacks([c for c in REFUSED if c.name in SAMPLE])
def test_evaluate_starts_nothing(case: Case, model: Path, tmp_path: Path) -> None:
    def arguments(folder: Path) -> list[str]:
        return ["evaluate", str(model), str(case.make(folder)), str(folder / "out")]

    check_command(Case(case.name, arguments, 1, case.words), tmp_path)
    assert not list(tmp_path.rglob("results.json"))
