"""Speech of a study: noise at the SNR drawn, resampling, shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.study.synthesis import (
    RATE,
    Job,
    SetJob,
    make_utterances,
    noisy,
    part_voices,
    resample_whole,
    speak_shard,
    speaker_of,
)


def tone(hertz: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def test_noise_has_the_ratio_that_was_drawn() -> None:
    draw = np.random.default_rng(3)
    clean = [(3000 * draw.standard_normal(n)).astype(np.int16) for n in (16000, 9000, 12000, 20000)]
    seen = set()
    for k in range(4):
        for seed in range(6):
            mixed, about = noisy(clean, k, np.random.default_rng(seed), (2.0, 8.0), talkers=3)
            speech = clean[k] / 32768
            noise = mixed - speech
            found = 10 * np.log10(np.mean(speech**2) / np.mean(noise**2))
            assert abs(found - about["snr"]) < 0.1
            assert 2.0 <= about["snr"] <= 8.0 and len(mixed) == len(clean[k]) and np.abs(mixed).max() <= 0.9001
            seen.add(about["noise"])
    assert seen == {"babble", "white"}


def test_a_tone_keeps_its_frequency_and_size() -> None:
    changed = resample_whole(tone(1000, 22050), 22050, RATE)
    wanted = tone(1000, RATE)
    assert len(changed) == len(wanted)
    inside = slice(800, -800)
    assert np.abs(changed[inside] - wanted[inside]).max() < 0.02


def test_what_the_new_rate_cannot_hold_is_gone() -> None:
    changed = resample_whole(tone(9500, 22050), 22050, RATE)
    assert np.abs(changed[800:-800]).max() < 0.02


def test_a_share_of_the_utterances_has_the_neural_voice(tmp_path: Path) -> None:
    pytest.importorskip("hibari", reason="the neural voice needs hibari-tts: pip install 'ilme[natural]'")
    texts = [f"this is sentence number {word}" for word in ("one", "two", "three", "four", "five", "six")]
    heard = {}
    for name, share in (("none", 0.0), ("half", 0.5), ("all", 1.0)):
        speak_shard(Job(tmp_path / name, "train", 0, texts, 5, seed=1, natural=share))
        heard[share] = json.loads((tmp_path / f"{name}.json").read_text())["voices"]
    natural = {share: [v.startswith("natural@") for v in voices] for share, voices in heard.items()}
    assert not any(natural[0.0]) and all(natural[1.0]) and 0 < sum(natural[0.5]) < 6
    assert all(a == b for a, b, n in zip(heard[0.0], heard[0.5], natural[0.5], strict=True) if not n)


def test_shards_are_the_same_each_time_and_voices_differ(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="speaking needs espeakng-loader: pip install 'ilme[synth]'")
    texts = ["call me ishmael", "the sea was calm", "he said nothing more"]
    jobs = [Job(tmp_path / name / "0000", "set", 0, texts, 5, seed=1) for name in ("a", "b")]
    for job in jobs:
        speak_shard(job)
    assert (tmp_path / "a/0000.i16").read_bytes() == (tmp_path / "b/0000.i16").read_bytes()
    about = json.loads((tmp_path / "a/0000.json").read_text())
    assert about["texts"] == texts and len(set(about["voices"])) > 1
    assert sum(about["sizes"]) * 2 == (tmp_path / "a/0000.i16").stat().st_size
    rows = make_utterances(SetJob(tmp_path / "a", "set", tmp_path / "noisy", range(1, 3), (2.0, 8.0), 2, seed=1))
    assert [row["text"] for row in rows] == texts[1:]
    import soundfile

    samples, rate = soundfile.read(tmp_path / "noisy" / rows[0]["audio_filepath"])
    assert rate == RATE and len(samples) == about["sizes"][1]


def test_voices_of_test_and_dev_are_not_those_of_training() -> None:
    names = ("Mike", "adam", "f1", "f2", "f3", "iven", "iven2", "john", "steph", "steph2", "zac", "mike2")
    parts = {part: set(part_voices(names, 6, part)) for part in ("train", "held-out", "target-dev", "source-test")}
    assert parts["held-out"] == parts["train"]
    train, dev, test = parts["train"], parts["target-dev"], parts["source-test"]
    assert train | dev | test == set(names) and not train & dev and not train & test and not dev & test
    assert len(dev) >= 3 and len(test) >= 3
    assert {"Mike", "mike2"} <= train or {"Mike", "mike2"} <= dev or {"Mike", "mike2"} <= test, (
        "one voice, two variants"
    )
    assert part_voices(names, 0, "target-test") == names
    with pytest.raises(BadInputError, match="leaves none for training"):
        part_voices(names, 24, "train")


def test_a_speaker_is_a_voice_in_any_accent() -> None:
    assert speaker_of("en-us+steph") == speaker_of("en-gb+steph") == "steph"
