"""Audio of any kind to mono float32 at the wanted rate.

One function, `load_audio`, takes a file (wav, flac, mp3, ogg, opus, whatever libsndfile reads) or an array.
Audio that cannot be used raises `AudioError`, whose `reason` is one of a few fixed words, so that an importer
can list it.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.runtime.files import write_atomically

__all__ = [
    "AudioError",
    "AudioInfo",
    "AudioSource",
    "Samples",
    "audio_file",
    "audio_info",
    "check_finite",
    "cut_off",
    "load_audio",
    "mono",
    "read_audio",
    "read_blocks",
    "resample",
    "resampling_ratio",
    "to_int16",
    "write_audio",
]

Samples: TypeAlias = NDArray[np.float32]
AudioSource: TypeAlias = "str | Path | NDArray[Any] | Any"  # a path, an array, or a torch tensor

LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000  # samples a second; a header with another rate is damaged, or no speech's
MOST_CHANNELS = 256
LOUDEST = 2.0**31  # the largest sample of a file whose floats were never divided by their full scale
BLOCK = 1 << 24  # samples, over all channels, that are read at once: what a header promises is never allocated unseen
LONGEST_PHASE = 1 << 16  # of the resampler, whose filter has 20 times as many taps

_OGG_LAST_PAGE = 0x04  # header type flag of the page that ends a stream (RFC 3533, section 6)
_OGG_PAGE_LIMIT = 65307 + 512  # a page is at most 65,307 bytes; the rest allows for a tag appended after it
_RATES = f"{LOWEST_RATE:,} to {HIGHEST_RATE:,} samples a second"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# libsndfile's note about a chunk that goes on after the file's end.
_TOO_LARGE = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
# What programs that wrote to a pipe leave in a WAV header in place of the size.
_UNKNOWN_SIZES = {0, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF}


class AudioError(BadInputError):
    """Audio that cannot be used.

    Attributes:
        reason: `missing`, `not a file`, `zero bytes`, `not audio`, `bad header`, `truncated`, `unreadable`, `empty`,
            `too short`, `not finite` or `bad shape`.
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
        if not LOWEST_RATE <= found_rate <= HIGHEST_RATE:
            raise AudioError(f"source_rate must be {_RATES}, not {found_rate}", "bad header")
    wave = mono(samples, axis=0)
    check_finite(wave, name)
    if wave.size == 0:
        raise AudioError(f"{name} holds no samples", "empty")
    seconds = wave.size / found_rate
    if seconds < shortest:
        raise AudioError(f"{name} lasts {seconds:.4f} s; at least {shortest:.4f} s are needed", "too short")
    return resample(wave, found_rate, rate)


def check_finite(samples: Samples, name: str, where: str = "") -> None:
    """An error where samples (N,) are no numbers, or so large that features of them would not be."""
    with np.errstate(invalid="ignore"):
        bad = int(np.count_nonzero(~(np.abs(samples) <= LOUDEST)))
    if bad:
        what = "absurdly large" if np.isfinite(samples).all() else "NaN or infinite"
        raise AudioError(f"{name} holds {bad} {what} samples{where}, of {samples.size}", "not finite")


def mono(samples: Samples, axis: int) -> Samples:
    """The mean of the channels, which are on this axis."""
    if samples.shape[axis] == 1:
        return samples.squeeze(axis)
    with np.errstate(over="ignore", invalid="ignore"):  # `check_finite` finds them
        return np.asarray(samples.mean(axis=axis, dtype=np.float32))


def resample(samples: NDArray[np.float32], source_rate: int, rate: int) -> Samples:
    """Band-limited polyphase resampling along the last axis."""
    if source_rate <= 0 or rate <= 0:
        raise BadInputError(f"rates must be positive, not {source_rate} and {rate}")
    if source_rate == rate:
        return np.ascontiguousarray(samples, dtype=np.float32)
    from scipy.signal import resample_poly

    up, down = resampling_ratio(source_rate, rate)
    return np.ascontiguousarray(resample_poly(samples, up, down, axis=-1), dtype=np.float32)


def resampling_ratio(source_rate: int, rate: int) -> tuple[int, int]:
    """(up, down), neither above LONGEST_PHASE. Rates that need more get the nearest ratio: off by 1 in 10⁷ at most."""
    exact = Fraction(rate, source_rate)
    if rate <= source_rate:
        near = exact.limit_denominator(LONGEST_PHASE)
    else:
        near = 1 / (1 / exact).limit_denominator(LONGEST_PHASE)
    return near.numerator, near.denominator


def audio_info(path: str | Path) -> AudioInfo:
    """Rate, channels and length as the header gives them; only `read_audio` knows what the file holds."""
    with audio_file(path) as file:
        return AudioInfo(int(file.samplerate), int(file.channels), int(file.frames))


def read_audio(path: str | Path) -> tuple[Samples, int]:
    """All samples (channels, N) of a file, in [-1, 1], and its rate. A file that was cut off is an error."""
    path = Path(path)
    with audio_file(path) as file:
        promised, header, rate = int(file.frames), str(file.extra_info), int(file.samplerate)
        blocks = list(read_blocks(file, path, BLOCK // int(file.channels)))
        samples = np.concatenate(blocks) if blocks else np.zeros((0, int(file.channels)), np.float32)
    missing = cut_off(path, promised, len(samples), header)
    if missing:
        raise AudioError(f"{path} is cut off: {missing}. Fetch or convert it again.", "truncated")
    return np.ascontiguousarray(samples.T), rate


def read_blocks(file: Any, path: Path, frames: int) -> Iterator[Samples]:
    """What is left of an open file as blocks (`frames`, channels); the last is shorter."""
    import soundfile

    while True:
        try:
            samples = file.read(frames, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise AudioError(f"{path} breaks off or is damaged: {error}", "truncated") from error
        if not len(samples):
            return
        yield samples


def audio_file(path: str | Path) -> Any:
    """The open file, for soundfile; an error that says what is wrong with it otherwise.

    Only regular files are opened: a pipe would wait for a writer for ever. Rate and channels are checked.
    """
    path = Path(path)
    size, start = _look_at(path)
    if size == 0:
        raise AudioError(f"{path} has zero bytes", "zero bytes")
    import soundfile

    # Bytes take any name, and a whole path is never "-", which libsndfile takes for stdin.
    whole = os.path.abspath(path)  # noqa: PTH100  (links stay as they were named)
    try:
        file = soundfile.SoundFile(whole if os.name == "nt" else os.fsencode(whole))
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        # A bare .raw file has no header, and soundfile asks for its rate with a TypeError.
        if start == b"OggS" and _ogg_missing(path):
            raise AudioError(f"{path} is cut off: {_ogg_missing(path)}", "truncated") from error
        why = str(error).removeprefix(f"Error opening {os.fsencode(whole)!r}: ")
        raise AudioError(f"{path} cannot be read as audio: {why}", "not audio") from error
    rate, channels = int(file.samplerate), int(file.channels)
    if LOWEST_RATE <= rate <= HIGHEST_RATE and 1 <= channels <= MOST_CHANNELS and file.frames >= 0:
        return file
    file.close()
    raise AudioError(
        f"the header of {path} gives {rate} samples a second in {channels} channels, and {_RATES} in at most "
        f"{MOST_CHANNELS} can be used. If the recording is right, convert it.",
        "bad header",
    )


def _look_at(path: Path) -> tuple[int, bytes]:
    """The size and the first four bytes of a regular file that may be read; an error for anything else."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for test, name in _KINDS if test(status.st_mode)), "not a file")
            raise AudioError(f"{path} is {kind}; name an audio file", "not a file")
        with path.open("rb") as file:
            return status.st_size, file.read(4)
    except ValueError as error:  # a zero byte in the name
        if isinstance(error, AudioError):
            raise
        raise AudioError(f"there is no file {str(path)!r}: {error}", "missing") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise AudioError(f"there is no file {path}", "missing") from error
        raise AudioError(f"{path} cannot be opened: {error.strerror or error}", "unreadable") from error


def cut_off(path: Path, promised: int, found: int, header: str) -> str:
    """How a file is known to be cut off, or an empty string.

    Each format tells in its own way: FLAC, MP3 and SPHERE give fewer samples than their header promises, WAV, AIFF, AU
    and others have a chunk larger than the file, Ogg (Opus, Vorbis) lacks the page that ends the stream.

    Args:
        path: The file.
        promised: Samples per channel, as libsndfile understands the header.
        found: Samples per channel that were read.
        header: What libsndfile noted about the header.
    """
    promised = max(promised, _sphere_samples(path))
    if found < promised:
        return f"its header promises {promised} samples and {found} are there"
    chunk = _TOO_LARGE.search(header)
    if chunk and int(chunk[1]) > int(chunk[2]) and int(chunk[1]) not in _UNKNOWN_SIZES:
        return f"its header promises {chunk[1]} bytes and {chunk[2]} are there"
    if "Seems to be a truncated file" in header:  # VOC
        return "its header promises more bytes than are there"
    return _ogg_missing(path)


def _sphere_samples(path: Path) -> int:
    """Samples per channel that the header of a NIST SPHERE file promises, which libsndfile does not look at."""
    with path.open("rb") as file:
        head = file.read(1024)
    count = re.search(rb"^sample_count -i (\d{1,15})\s", head, re.MULTILINE)
    return int(count[1]) if head.startswith(b"NIST_1A") and count else 0


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
    try:
        array = np.asarray(source.detach().cpu().float().numpy() if hasattr(source, "detach") else source)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AudioError(f"the samples are no array of numbers: {error}", "bad shape") from error
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


def write_audio(path: Path, samples: NDArray[Any], rate: int, *, format: str, **how: Any) -> None:
    """Samples as a file, whole or not at all; format, subtype and the like are those of `soundfile`."""
    import soundfile

    encoded = io.BytesIO()
    soundfile.write(encoded, samples, rate, format=format, **how)
    write_atomically(path, encoded.getvalue(), sync=False)
