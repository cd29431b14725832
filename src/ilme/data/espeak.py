"""espeak-ng through its shared library, from the `espeakng-loader` wheel: no system package, no subprocess.

The library keeps much of its state in globals (flutter, noise, filters), so what an utterance sounds like depends on
all that were spoken before it. Here the library is loaded afresh for each utterance and its random numbers are seeded:
the same voice and text give the same samples, in any order and in any process.
"""

from __future__ import annotations

import _ctypes
import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError, MissingExtraError

__all__ = ["ACCENTS", "RATE_HZ", "Voice", "speak", "speak_timed", "variants"]

RATE_HZ = 22_050  # what the library makes

# British, American, Scottish, Received Pronunciation, Lancaster, West Midlands, Caribbean, New York
ACCENTS = (
    "en",
    "en-us",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)
# Variants that sound like no person: robots, whispers, effects.
_NOT_HUMAN = ("robosoft", "klatt", "whisper", "anikaRobot", "UniRobot", "Demonic", "Tweaky", "croak", "Storm", "fast")

_SYNCHRONOUS, _DO_NOT_EXIT, _UTF8, _BY_CHARACTER = 2, 0x8000, 1, 1
_SPEED, _PITCH, _RANGE = 1, 3, 4
_END_OF_EVENTS, _WORD = 0, 1


class _Event(ctypes.Structure):
    """espeak_EVENT: what begins where in the samples."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Voice:
    """How to speak.

    Attributes:
        accent: A language of the library, such as `en-us`; see ACCENTS.
        variant: A voice variant, such as `f3`; see `variants`. Empty for the accent's own voice.
        rate: Words a minute, 80–450.
        pitch: 0–100.
        range: How much the pitch moves, 0–100.
    """

    accent: str = "en-us"
    variant: str = ""
    rate: int = 175
    pitch: int = 50
    range: int = 50

    @property
    def name(self) -> str:
        return f"{self.accent}+{self.variant}" if self.variant else self.accent


@cache
def _paths() -> tuple[str, bytes]:
    """The library and its data."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise MissingExtraError("espeakng-loader", "synth") from error
    return espeakng_loader.get_library_path(), str(espeakng_loader.get_data_path()).encode()


@cache
def _all_variants() -> frozenset[str]:
    return frozenset(p.name for p in (Path(_paths()[1].decode()) / "voices" / "!v").iterdir())


def variants() -> list[str]:
    """The voice variants that sound like people, sorted."""
    return sorted(name for name in _all_variants() if not name.startswith(_NOT_HUMAN))


def speak(text: str, voice: Voice) -> NDArray[np.int16]:
    """Samples at 22,050 Hz; none for a text without anything to say.

    Raises:
        BadInputError: The library has no such voice.
    """
    return speak_timed(text, voice)[0]


def speak_timed(text: str, voice: Voice) -> tuple[NDArray[np.int16], list[tuple[int, float]]]:
    """The samples of `speak`, and for each word where it begins: in the text, in characters, and in seconds.

    Raises:
        BadInputError: The library has no such voice.
    """
    path, data = _paths()
    if voice.variant and voice.variant not in _all_variants():  # the library would speak without it
        raise BadInputError(
            f"espeak-ng has no voice variant {voice.variant!r}, only {', '.join(sorted(_all_variants()))}"
        )
    chunks: list[bytes] = []
    words: list[tuple[int, float]] = []

    def collect(samples: object, count: int, events: Any) -> int:
        if count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))  # type: ignore[arg-type]
        place = 0
        while events and events[place].type != _END_OF_EVENTS:
            if events[place].type == _WORD:
                words.append((events[place].text_position - 1, events[place].sample / RATE_HZ))
            place += 1
        return 0

    callback = _Callback(collect)
    encoded = text.replace("\0", " ").encode("utf-8", "replace")
    with _one_at_a_time:
        library = ctypes.CDLL(path)
        try:
            if library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DO_NOT_EXIT) != RATE_HZ:
                raise BadInputError(f"espeak-ng does not start with its data in {data.decode()}; is the path too long?")
            library.espeak_SetSynthCallback(callback)
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
            ctypes.CDLL(None).srand(1)
            if library.espeak_SetVoiceByName(voice.name.encode()) != 0:
                raise BadInputError(f"espeak-ng has no voice {voice.name!r}; accents are {', '.join(ACCENTS)}")
            for parameter, value in ((_SPEED, voice.rate), (_PITCH, voice.pitch), (_RANGE, voice.range)):
                library.espeak_SetParameter(parameter, value, 0)
            library.espeak_Synth(encoded, len(encoded) + 1, 0, _BY_CHARACTER, 0, _UTF8, None, None)
            library.espeak_Synchronize()
            library.espeak_Terminate()
        finally:
            handle = library._handle
            del library
            _ctypes.dlclose(handle)
    return np.frombuffer(b"".join(chunks), dtype=np.int16), words
