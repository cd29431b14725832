"""Recording: with what, how, and what is said when it cannot be done. No microphone is needed."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.data import microphone
from ilme.data.microphone import RATE, record
from ilme.errors import BadInputError

RECORDER = """#!{python}
import sys
import numpy, soundfile
arguments = sys.argv[1:]
print(*arguments, file=open({log!r}, "w"))
name = next(a for a in arguments if a.endswith(".wav"))
soundfile.write(name, {level} * numpy.sin(numpy.arange(8000) / 5), 16000)
"""


def program(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, on a machine without sounddevice."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "platform", "linux")
    found = microphone.importlib.util.find_spec
    monkeypatch.setattr(
        microphone.importlib.util, "find_spec", lambda name: None if name == "sounddevice" else found(name)
    )
    return folder


@pytest.mark.parametrize(
    ("name", "told"), [("arecord", "-r 16000 -d 3"), ("rec", "trim 0 2.5"), ("ffmpeg", "-f alsa -i default -t 2.5")]
)
def test_records_with_what_is_there(path: Path, tmp_path: Path, name: str, told: str) -> None:
    log = tmp_path / "arguments"
    program(path, name, RECORDER.format(python=sys.executable, log=str(log), level=0.5))
    record(2.5, tmp_path / "a.wav")
    assert soundfile.info(tmp_path / "a.wav").frames == 8000
    assert told in log.read_text()


def test_without_anything_it_says_what_to_install(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"pip install 'ilme\[mic\]'.*alsa-utils.*--wav"):
        record(2.0, tmp_path / "a.wav")


def test_a_program_that_fails_is_quoted(path: Path, tmp_path: Path) -> None:
    program(path, "arecord", f"#!{sys.executable}\nimport sys\nsys.exit('main:850: audio open error: No such file')\n")
    with pytest.raises(BadInputError, match="arecord cannot record: main:850: audio open error"):
        record(2.0, tmp_path / "a.wav")


def test_digital_silence_is_no_recording(path: Path, tmp_path: Path) -> None:
    program(path, "arecord", RECORDER.format(python=sys.executable, log=str(tmp_path / "arguments"), level=0))
    with pytest.raises(BadInputError, match="silent to the last bit"):
        record(2.0, tmp_path / "a.wav")


def test_sounddevice_goes_first(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def rec(frames: int, **how: object) -> np.ndarray:
        asked.update(how, frames=frames)
        return np.full((frames, 1), 0.25, np.float32)

    device = types.SimpleNamespace(rec=rec)
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    monkeypatch.setattr(microphone.importlib.util, "find_spec", lambda name: object())
    record(0.5, tmp_path / "a.wav")
    assert asked == {"frames": 8000, "samplerate": RATE, "channels": 1, "dtype": "float32", "blocking": True}
    samples, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == RATE and samples == pytest.approx(0.25, abs=1e-4)

    device.rec = lambda frames, **how: (_ for _ in ()).throw(OSError("PortAudio library not found"))
    with pytest.raises(BadInputError, match="sounddevice cannot record: PortAudio library not found"):
        record(0.5, tmp_path / "a.wav")


@pytest.mark.parametrize("seconds", [0.0, -1.0, 601.0, float("nan")])
def test_a_recording_has_a_length(seconds: float, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="up to 600 seconds"):
        record(seconds, tmp_path / "a.wav")
