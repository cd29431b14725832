"""Synthetic speech: the same seed gives the same bytes, in any order and after any interruption."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

pytest.importorskip("espeakng_loader", reason="the extra 'synth' is not installed")

from ilme.data import synth as module
from ilme.data.espeak import ACCENTS, RATE_HZ, Voice, speak, variants
from ilme.data.synth import SynthOptions, draw_voice, synthesise
from ilme.errors import BadInputError

LINES = ["the cat sat on the mat", "In 1984 it cost $5.", "...", "hello there my friend", "Straße und café", "one more"]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return [str(tmp_path / "t.txt")]


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def manifest(folder, name="manifest.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_speech_does_not_depend_on_what_was_said_before():
    voices = [Voice("en-us", v) for v in ("f3", "Alicia", "caleb", "m4", "Annie")]
    first = [speak("the quick brown fox", v) for v in voices]
    for v in reversed(voices):
        speak("something else entirely, isn't it?", v)
    again = [speak("the quick brown fox", v) for v in voices]
    for a, b in zip(first, again, strict=True):
        assert len(a) > RATE_HZ // 2 and np.array_equal(a, b)
    assert not np.array_equal(first[0], first[1])


def test_every_accent_and_variant_speaks():
    assert len(variants()) > 60
    for accent in ACCENTS:
        assert speak("yes", Voice(accent, "f2")).any()
    for variant in variants():
        assert speak("yes", Voice("en-us", variant)).any(), variant
    with pytest.raises(BadInputError, match="no voice"):
        speak("yes", Voice("xx-none"))
    with pytest.raises(BadInputError, match="no voice variant"):
        speak("yes", Voice("en-us", "nobody"))


@pytest.mark.parametrize("odd", ["", "\0", "!!!", "\ud800", "<ssml>", "a" * 5000, "日本語", "\n\r\t"])
def test_odd_texts_do_not_crash(odd):
    assert speak(odd, Voice()).dtype == np.int16


def test_rate_pitch_and_range_change_the_sound():
    plain = speak("good morning to you", Voice())
    assert len(speak("good morning to you", Voice(rate=300))) < len(plain)
    for changed in (Voice(pitch=80), Voice(range=90)):
        assert not np.array_equal(speak("good morning to you", changed), plain)


def test_manifest_and_audio(text, tmp_path):
    report = synthesise(text, tmp_path / "a", SynthOptions(repeats=2, workers=1))
    entries = manifest(tmp_path / "a")
    assert report.spoken == len(entries) == 10 and report.rejected == 2
    assert report.spoken + report.rejected == 2 * len(LINES)
    assert {e["rejected"] for e in manifest(tmp_path / "a", "rejected.jsonl")} == {"no sound"}
    assert entries[2]["text"] == "in nineteen eighty four it cost five dollars"
    assert entries[0]["speaker"] != entries[1]["speaker"] and entries[0]["text"] == entries[1]["text"]
    for entry in entries:
        samples, rate = soundfile.read(tmp_path / "a" / entry["audio_filepath"])
        assert rate == 16_000 and len(samples) / rate == pytest.approx(entry["duration"], abs=1e-4)
        assert np.abs(samples).max() > 0.02
    assert report.seconds == pytest.approx(sum(e["duration"] for e in entries))


def test_same_seed_same_bytes_for_any_number_of_processes_and_after_an_interruption(text, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART", 2)
    options = SynthOptions(seed=3, workers=1)
    synthesise(text, tmp_path / "a", options)
    whole = files(tmp_path / "a")

    made = []
    original = module._Maker.__call__

    def breaks(self, part):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(part.number)
        original(self, part)

    monkeypatch.setattr(module._Maker, "__call__", breaks)
    with pytest.raises(KeyboardInterrupt):
        synthesise(text, tmp_path / "b", options)
    assert not (tmp_path / "b" / "manifest.jsonl").exists()
    monkeypatch.setattr(module._Maker, "__call__", original)
    report = synthesise(text, tmp_path / "b", options)
    assert report.parts == 3 and report.parts_made == 1
    assert files(tmp_path / "b") == whole


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(tmp_path):
    (tmp_path / "t.txt").write_text("".join(f"number {i}\n" for i in range(120)))
    for workers, name in ((1, "one"), (2, "two")):
        report = synthesise([str(tmp_path / "t.txt")], tmp_path / name, SynthOptions(workers=workers))
        assert report.parts == 2
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_another_seed_or_text_is_another_folder(text, tmp_path):
    synthesise(text, tmp_path / "a", SynthOptions(limit=1))
    with pytest.raises(BadInputError, match="another seed"):
        synthesise(text, tmp_path / "a", SynthOptions(limit=1, seed=1))
    with pytest.raises(BadInputError, match="another limit, text"):
        synthesise(text, tmp_path / "a", SynthOptions(limit=2))
    synthesise(text, tmp_path / "b", SynthOptions(limit=1, seed=1))
    assert files(tmp_path / "a") != files(tmp_path / "b")


def test_draws_cover_the_ranges_and_depend_on_the_number_only():
    options = SynthOptions(accents=("en", "en-us"), rate=(150, 152))
    names = ("f1", "m1", "m2")
    voices = [draw_voice(options, i, names) for i in range(300)]
    assert {v.accent for v in voices} == {"en", "en-us"} and {v.variant for v in voices} == set(names)
    assert {v.rate for v in voices} == {150, 151, 152}
    assert min(v.pitch for v in voices) < 25 and max(v.pitch for v in voices) > 75
    assert draw_voice(options, 7, names) == voices[7]


def test_bad_options():
    for bad in (
        {"rate": (10, 100)},
        {"pitch": (60, 50)},
        {"repeats": 0},
        {"accents": ()},
        {"limit": -1},
        {"workers": -1},
        {"variants": ()},
        {"format": "mp3"},
        {"workers": 0},
        {"max_seconds": 0},
    ):
        with pytest.raises(BadInputError):
            SynthOptions(**bad)
