"""The neural voice: the same each time, deeper where it is played slower, at the pace that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.data.neural_voice import GRID_HZ, PACE, PITCH, RATE_HZ, NaturalVoice, draw_natural_voice, speak_naturally
from ilme.data.synth import SynthOptions, synthesise
from ilme.errors import BadInputError
from ilme.study.synthesis import RATE, resample_whole

pytest.importorskip("hibari", reason="the neural voice needs hibari-tts: pip install 'ilme[natural]'")
SENTENCE = "the committee will meet again on the second monday of next month"


def seconds(voice: NaturalVoice) -> float:
    return len(speak_naturally(SENTENCE, voice)) / voice.rate


def fundamental(voice: NaturalVoice) -> float:
    """Hz of the median over frames: the lag with the highest autocorrelation, where speech is loud."""
    wave = resample_whole(speak_naturally(SENTENCE, voice), voice.rate, RATE)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 1024)[::512]
    loud = frames[np.square(frames).mean(1) > 0.5 * np.square(frames).mean()]
    spectra = np.square(np.abs(np.fft.rfft(loud, 2048)))
    lags = np.fft.irfft(spectra)[:, RATE // 400 : RATE // 70].argmax(1) + RATE // 400
    return float(RATE / np.median(lags))


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    first, again, other = (speak_naturally(SENTENCE, NaturalVoice(seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.dtype == np.float32 and 2.0 < len(first) / RATE_HZ < 8.0 and 0.05 < np.abs(first).max() <= 1.0


def test_pace_changes_the_length_alone_and_the_rate_the_pitch_alone() -> None:
    own, slow, deep = NaturalVoice(), NaturalVoice(pace=0.8), NaturalVoice(rate=19_200)
    assert seconds(slow) == pytest.approx(seconds(own) / 0.8, rel=0.1)
    assert seconds(deep) == pytest.approx(seconds(own), rel=0.15)
    assert fundamental(slow) == pytest.approx(fundamental(own), rel=0.1)
    assert fundamental(deep) == pytest.approx(0.8 * fundamental(own), rel=0.1)


def test_a_text_is_spoken_without_espeak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ilme.data.synth.variants", lambda: pytest.fail("espeak-ng was asked for its voices"))
    monkeypatch.setattr("ilme.data.synth.speak", lambda *_: pytest.fail("espeak-ng was asked to speak"))
    text = tmp_path / "text.txt"
    text.write_text(f"{SENTENCE}\nhe paid 20 dollars for it\n")
    report = synthesise([str(text)], tmp_path / "speech", SynthOptions(natural=1.0, workers=1))
    rows = [json.loads(line) for line in (tmp_path / "speech/manifest.jsonl").read_text().splitlines()]
    assert report.spoken == 2 and [row["text"] for row in rows] == [SENTENCE, "he paid twenty dollars for it"]
    for row in rows:
        audio = soundfile.info(tmp_path / "speech" / row["audio_filepath"])
        assert audio.samplerate == RATE and audio.duration == pytest.approx(row["duration"], abs=1e-3)
        assert row["speaker"].startswith("natural@") and PACE[0] <= row["pace"] <= PACE[1]
    with pytest.raises(BadInputError, match="a share of the utterances"):
        SynthOptions(natural=1.5)


def test_voices_are_drawn_within_their_ranges_at_rates_that_resample_well() -> None:
    voices = [draw_natural_voice(np.random.default_rng(i)) for i in range(200)]
    assert all(v.rate % GRID_HZ == 0 and PITCH[0] <= v.rate / RATE_HZ <= PITCH[1] + 0.02 for v in voices)
    assert all(PACE[0] <= v.pace <= PACE[1] for v in voices)
    assert len({v.name for v in voices}) > 150
