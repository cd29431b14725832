"""Long files: every second is heard once, in order, and memory does not grow with the file."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")

from ilme.recogniser.domain import Domain, DomainRecogniser  # noqa: E402
from ilme.search.hypothesis import Hypothesis, Scores  # noqa: E402


class Listener:
    """A recogniser that writes how many samples of each window it heard."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(window=30.0, rules=None)
        self.heard = 0
        self.largest = 0

    def encode(self, audio):
        return audio

    def search(self, audio, weights, beam):
        self.heard += sum(map(len, audio))
        self.largest = max(self.largest, len(audio))
        return [[Hypothesis((1,), -1.0, Scores(asr=-1.0), text=f"{len(samples)}")] for samples in audio]


def write(path, minutes: float, rate: int, channels: int) -> None:
    """Minutes of noise, written one second at a time."""
    second = (np.random.default_rng(0).standard_normal((rate, channels)) * 3000).astype(np.int16)
    with soundfile.SoundFile(path, "w", rate, channels) as file:
        for _ in range(int(minutes * 60)):
            file.write(second)


def transcribed(path) -> tuple[Listener, object, int, list]:
    """The listener, the transcript, the largest memory that Python and NumPy held meanwhile, and the progress."""
    listener, seen = Listener(), []
    recogniser = DomainRecogniser(Domain("any"), listener)
    tracemalloc.start()
    transcript = recogniser.transcribe(path, batch=2, progress=lambda done, whole: seen.append((done, whole)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return listener, transcript, peak, seen


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2)])
def test_memory_does_not_grow_with_the_file(tmp_path, rate, channels):
    peaks = {}
    for minutes in (3, 9):
        file = tmp_path / "long.wav"
        write(file, minutes, rate, channels)
        listener, transcript, peaks[minutes], seen = transcribed(file)
        assert listener.heard == minutes * 60 * 16_000 and listener.largest == 2
        assert sum(int(s.text) for s in transcript.segments) == listener.heard
        ends = [s.end for s in transcript.segments]
        assert ends == sorted(ends) and ends[-1] == transcript.seconds == minutes * 60
        assert seen[-1] == (minutes * 60, minutes * 60) and len(seen) > minutes
    assert peaks[9] < 1.3 * peaks[3], "three times as long, but windows fall a little otherwise"
    assert peaks[9] < 10 * 30 * rate * channels * 4, "ten blocks as they are in the file"


def test_an_array_and_its_file_give_the_same(tmp_path):
    file = tmp_path / "a.wav"
    write(file, 1.7, 16_000, 1)
    samples, _ = soundfile.read(file, dtype="float32")
    from_file, from_array = transcribed(file)[1], transcribed(samples)[1]
    assert from_file.segments == from_array.segments and from_file.seconds == from_array.seconds
