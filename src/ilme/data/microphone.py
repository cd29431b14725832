"""Records from the microphone: with the `sounddevice` package, or with a program that the system has."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ilme.data.audio import load_audio, write_audio
from ilme.errors import BadInputError

__all__ = ["RATE", "find_recorder", "record"]

RATE = 16_000
LONGEST = 600.0  # seconds
SLACK = 20.0  # seconds that a program may take to begin and to end
Recorder = Callable[[float, Path], None]
PROGRAMS = {  # what records so many seconds into a file, by system
    "arecord": ("linux", ["-q", "-f", "S16_LE", "-c", "1", "-r", f"{RATE}", "-d", "{whole}", "{file}"]),
    "rec": ("", ["-q", "-c", "1", "-r", f"{RATE}", "-b", "16", "{file}", "trim", "0", "{seconds}"]),
    "ffmpeg": ("linux", ["-v", "error", "-y", "-f", "alsa", "-i", "default", "-t", "{seconds}", "{file}"]),
}
ADVICE = (
    "there is nothing to record with: pip install 'ilme[mic]' (with Debian's libportaudio2), or install arecord "
    "(alsa-utils), sox or ffmpeg; or record with any other program and name the file with --wav"
)


def record(seconds: float, file: Path) -> None:
    """Records so many seconds, mono, into a WAV file.

    Raises:
        BadInputError: There is nothing to record with, no microphone, or nothing but digital silence came.
    """
    if not 0 < seconds <= LONGEST:
        raise BadInputError(f"a recording is up to {LONGEST:.0f} seconds long, got {seconds:g}")
    find_recorder()(seconds, file)
    if not load_audio(file, RATE).any():
        raise BadInputError("the recording is silent to the last bit: is the microphone switched off, or not allowed?")


def find_recorder() -> Recorder:
    """What records here."""
    if importlib.util.find_spec("sounddevice") is not None:
        return _with_sounddevice
    for name, (system, arguments) in PROGRAMS.items():
        if (program := shutil.which(name)) and sys.platform.startswith(system):
            return _Program([program, *arguments])
    raise BadInputError(ADVICE)


def _with_sounddevice(seconds: float, file: Path) -> None:
    try:
        import sounddevice

        samples = sounddevice.rec(round(seconds * RATE), samplerate=RATE, channels=1, dtype="float32", blocking=True)
    except Exception as error:  # OSError without PortAudio, its own kinds without a microphone
        raise BadInputError(
            f"sounddevice cannot record: {str(error).splitlines()[0]}; is a microphone there?"
        ) from error
    write_audio(file, samples[:, 0], RATE, format="WAV")


class _Program:
    """A program that records into the file that it is given."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def __call__(self, seconds: float, file: Path) -> None:
        given = {"seconds": f"{seconds:g}", "whole": f"{math.ceil(seconds)}", "file": str(file)}
        command = [self.command[0], *(part.format(**given) for part in self.command[1:])]
        name = Path(self.command[0]).name
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds + SLACK,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BadInputError(f"{name} did not end: is another program using the microphone?") from error
        if done.returncode or not file.is_file():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise BadInputError(
                f"{name} cannot record: {said[-1] if said else 'no sound came'}; is a microphone there?"
            )
