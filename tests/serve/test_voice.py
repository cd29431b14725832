"""What nobody says is not shown to a recogniser: silence, noise, hum, tones, breath, clicks. Speech is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter
from silero_vad import load_silero_vad

from ilme.data.audio import resample
from ilme.data.espeak import RATE_HZ, Voice, speak
from ilme.errors import MissingExtraError
from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.serve.tasks import Recognise, Shelf
from ilme.serve.turns import Turns
from ilme.serve.voice import CHUNK, RATE, VoiceActivity
from ilme.workflows.transcribe import Job

SECONDS = 3
TIME = np.arange(SECONDS * RATE) / RATE
RANDOM = np.random.default_rng(0).normal(size=len(TIME))


def tones(*hertz: float) -> np.ndarray:
    return 0.1 * sum(np.sin(2 * np.pi * f * TIME) for f in hertz)


SOUNDS = {
    "silence": 0 * TIME,
    "quiet noise": 0.001 * RANDOM,
    "noise": 0.1 * RANDOM,
    "loud noise": np.clip(0.5 * RANDOM, -1, 1),
    "hum": tones(50, 100, 150, 250),
    "chord": tones(261.6, 329.6, 392.0, 523.3),
    "siren": 0.2 * np.sin(2 * np.pi * 700 * TIME + 300 * np.sin(np.pi * TIME)),
    "breath": 0.1 * np.sin(np.pi * TIME / 1.5) ** 2 * lfilter([1], [1, -0.9], RANDOM),
    "clicks": 0.4 * RANDOM * (TIME % 0.3 < 0.005),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_are_no_speech(name: str) -> None:
    sound = SOUNDS[name].astype(np.float32)
    assert not VoiceActivity().is_spoken(sound)
    assert not Turns(VoiceActivity()).feed(sound)


@pytest.mark.parametrize("level", [0.02, 1.0])
def test_speech_is(level: float) -> None:
    spoken = resample(speak("the whale swam off to the sea", Voice()).astype(np.float32) / 32768, RATE_HZ, RATE)
    spoken = np.pad(level * spoken, (RATE, RATE)).astype(np.float32)
    assert VoiceActivity().is_spoken(spoken)
    (_, start), (_, stop) = Turns(VoiceActivity()).feed(spoken)
    assert 0.5 * RATE < start < 1.3 * RATE and stop > len(spoken) - 1.2 * RATE


def test_a_package_without_the_model_is_to_be_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silero_vad").mkdir()
    (tmp_path / "silero_vad" / "__init__.py").touch()  # as earlier versions have it
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "silero_vad")
    with pytest.raises(MissingExtraError, match=r"silero-vad>=6\.2\.3.*ilme\[serve\]"):
        VoiceActivity()


def test_pieces_are_heard_as_the_makers_hear_the_whole() -> None:
    theirs = load_silero_vad(sequence=True)
    spoken = resample(speak("the whale swam off", Voice()).astype(np.float32) / 32768, RATE_HZ, RATE)
    spoken = np.pad(spoken, (CHUNK, -len(spoken) % CHUNK))
    voice = VoiceActivity()
    for _ in range(2):  # `reset` forgets
        voice.reset()
        pieces = [voice.probabilities(piece) for piece in np.split(spoken, [CHUNK, 3 * CHUNK, 20 * CHUNK])]
        np.testing.assert_allclose(np.concatenate(pieces), theirs.audio_forward(spoken, RATE), atol=1e-4)


def test_sounds_have_no_text(models: Path) -> None:
    windows = [Window(0.0, 1.0, sound[:RATE].astype(np.float32)) for sound in SOUNDS.values()]
    task = Recognise("sea", Job(str(models / "sea")), windows)
    assert task.run(Shelf(voice_activity=True)) == [[Segment(0.0, 1.0, "")]] * len(windows)
    texts = [segments[0].text for segments in task.run(Shelf(voice_activity=False))]  # type: ignore[index]
    assert sum(bool(text) for text in texts) > len(windows) // 2, "the model itself writes something"
