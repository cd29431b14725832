"""Audio of any kind to mono float32 at the wanted rate.

One function, `load_audio`, takes a file (wav, flac, mp3, ogg, opus, whatever libsndfile reads) or an array.
Audio that cannot be used raises `AudioError`, whose `reason` is one of a few fixed words, so that an importer
can list it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError

__all__ = [
    "AudioError",
    "AudioInfo",
    "AudioSource",
    "Samples",
    "audio_file",
    "audio_info",
    "cut_off",
    "load_audio",
    "read_audio",
    "resample",
    "to_int16",
]

Samples: TypeAlias = NDArray[np.float32]
AudioSource: TypeAlias = "str | Path | NDArray[Any] | Any"  # a path, an array, or a torch tensor

_OGG_LAST_PAGE = 0x04  # header type flag of the page that ends a stream (RFC 3533, section 6)
_OGG_PAGE_LIMIT = 65307 + 512  # a page is at most 65,307 bytes; the rest allows for a tag appended after it
# What programs that wrote to a pipe leave in a WAV header in place of the size.
_UNKNOWN_SIZES = {0, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF}


class AudioError(BadInputError):
    """Audio that cannot be used.

    Attributes:
        reason: `missing`, `zero bytes`, `not audio`, `truncated`, `unreadable`, `empty`, `too short`, `not finite`
            or `bad shape`.
    """

    def __init__(self, message: str, reason: str = "unreadable") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[AudioError], tuple[str, str]]:
        return type(self), (str(self), self.reason)  # so that it crosses from a worker process whole


@dataclass(frozen=True)
class AudioInfo:
    """What a file's header says: samples a second, channels, samples per channel."""

    rate: int
    channels: int
    samples: int

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


def load_audio(
    source: AudioSource,
    rate: int = 16000,
    *,
    source_rate: int | None = None,
    shortest: float = 0.0,
) -> Samples:
    """Mono float32 samples (N,) in [-1, 1] at `rate`.

    Channels are averaged. Integer arrays are divided by their full scale.

    Args:
        source: A file, or samples as a NumPy array or torch tensor, (N,) or (channels, N).
        rate: Samples a second wanted.
        source_rate: Samples a second of an array; None means that it is at `rate` already. Not for files.
        shortest: Audio of fewer seconds is an error; empty audio always is.
    """
    if isinstance(source, str | Path):
        if source_rate is not None:
            raise BadInputError(f"source_rate={source_rate} is for arrays; the file {source} has its own")
        name = str(source)
        samples, found_rate = read_audio(source)
    else:
        name = "the array"
        samples, found_rate = _from_array(source), source_rate or rate
    mono = samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)
    if not np.isfinite(mono).all():
        count = int((~np.isfinite(mono)).sum())
        raise AudioError(f"{name} holds {count} NaN or infinite samples, of {mono.size}", "not finite")
    if mono.size == 0:
        raise AudioError(f"{name} holds no samples", "empty")
    seconds = mono.size / found_rate
    if seconds < shortest:
        raise AudioError(f"{name} lasts {seconds:.4f} s; at least {shortest:.4f} s are needed", "too short")
    return resample(mono, found_rate, rate)


def resample(samples: NDArray[np.float32], source_rate: int, rate: int) -> Samples:
    """Band-limited polyphase resampling along the last axis."""
    if source_rate <= 0 or rate <= 0:
        raise BadInputError(f"rates must be positive, not {source_rate} and {rate}")
    if source_rate == rate:
        return np.ascontiguousarray(samples, dtype=np.float32)
    from scipy.signal import resample_poly

    common = math.gcd(source_rate, rate)
    resampled = resample_poly(samples, rate // common, source_rate // common, axis=-1)
    return np.ascontiguousarray(resampled, dtype=np.float32)


def audio_info(path: str | Path) -> AudioInfo:
    """Rate, channels and length as the header gives them; only `read_audio` knows what the file holds."""
    with audio_file(path) as file:
        return AudioInfo(int(file.samplerate), int(file.channels), int(file.frames))


def read_audio(path: str | Path) -> tuple[Samples, int]:
    """All samples (channels, N) of a file, in [-1, 1], and its rate. A file that was cut off is an error."""
    import soundfile

    path = Path(path)
    with audio_file(path) as file:
        promised, header = int(file.frames), str(file.extra_info)
        try:
            samples = file.read(dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise AudioError(f"{path} breaks off or is damaged: {error}", "truncated") from error
        rate = int(file.samplerate)
    missing = cut_off(path, promised, len(samples), header)
    if missing:
        raise AudioError(f"{path} is cut off: {missing}. Fetch or convert it again.", "truncated")
    return np.ascontiguousarray(samples.T), rate


def audio_file(path: str | Path) -> Any:
    """The open file, for soundfile; an error that says what is wrong with it otherwise."""
    path = Path(path)
    if not path.is_file():
        raise AudioError(f"there is no file {path}", "missing")
    if path.stat().st_size == 0:
        raise AudioError(f"{path} has zero bytes", "zero bytes")
    import soundfile

    try:
        return soundfile.SoundFile(path)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        # A bare .raw file has no header, and soundfile asks for its rate with a TypeError.
        if path.open("rb").read(4) == b"OggS" and _ogg_missing(path):
            raise AudioError(f"{path} is cut off: {_ogg_missing(path)}", "truncated") from error
        raise AudioError(f"{path} cannot be read as audio: {error}", "not audio") from error


def cut_off(path: Path, promised: int, found: int, header: str) -> str:
    """How a file is known to be cut off, or an empty string.

    Each format tells in its own way: FLAC and MP3 give fewer samples than their header promises, WAV has a
    data chunk larger than the file, Ogg (Opus, Vorbis) lacks the page that ends the stream.
    """
    if found < promised:
        return f"its header promises {promised} samples and {found} are there"
    wave = re.search(r"^data : (\d+) \(should be (\d+)\)", header, re.MULTILINE)
    if wave and int(wave[1]) > int(wave[2]) and int(wave[1]) not in _UNKNOWN_SIZES:
        return f"its header promises {wave[1]} bytes of samples and {wave[2]} are there"
    return _ogg_missing(path)


def _ogg_missing(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(4) != b"OggS":
            return ""
        size = file.seek(0, 2)
        file.seek(max(0, size - _OGG_PAGE_LIMIT))
        tail = file.read()
    last = tail.rfind(b"OggS")
    if last < 0 or len(tail) < last + 27 or not tail[last + 5] & _OGG_LAST_PAGE:
        return "the page that ends an Ogg stream is missing"
    lacing = tail[last + 27 : last + 27 + tail[last + 26]]
    wanted = last + 27 + tail[last + 26] + sum(lacing)
    return "" if len(tail) >= wanted else f"its last page lacks {wanted - len(tail)} bytes"


def _from_array(source: Any) -> Samples:
    """(channels, N) float32 of an array or tensor."""
    if hasattr(source, "detach"):
        source = source.detach().cpu().numpy()
    array = np.asarray(source)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2:
        raise AudioError(f"samples must be (N,) or (channels, N), not {array.shape}", "bad shape")
    if array.shape[0] > 64 and array.shape[0] > array.shape[1]:
        raise AudioError(f"samples {array.shape} look like (N, channels); pass their transpose", "bad shape")
    if array.shape[0] == 0:
        raise AudioError("the array holds no channel", "empty")
    if array.dtype.kind == "i":
        return (array / (float(np.iinfo(array.dtype).max) + 1.0)).astype(np.float32)
    if array.dtype.kind != "f":
        raise AudioError(f"samples must be floats or signed integers, not {array.dtype}", "bad shape")
    return array.astype(np.float32, copy=False)


def to_int16(wave: NDArray[np.float32]) -> NDArray[np.int16]:
    """Numbers of the size of int16 samples, rounded and cut off where they do not fit."""
    return np.clip(np.rint(wave), -32768, 32767).astype(np.int16)
