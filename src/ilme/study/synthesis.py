"""What a speaking process does: sentences to int16 samples, noise, files. No torch, so that processes start fast."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ilme.data.audio import to_int16, write_audio
from ilme.errors import BadInputError
from ilme.runtime.files import make_folder
from ilme.study.shards import list_shards, read_samples, write_shard

if TYPE_CHECKING:
    from ilme.data.espeak import Voice
    from ilme.data.neural_voice import NaturalVoice

__all__ = [
    "RATE",
    "SET_FORMAT",
    "Job",
    "Part",
    "SetJob",
    "make_utterances",
    "noisy",
    "resample_whole",
    "speak_shard",
    "write_opus",
]

RATE = 16000
BABBLE = 0.6  # share of dev and test utterances with babble; the others have white noise
SET_FORMAT = "flac"  # of dev and test sets: Opus, even at 31 kbit/s, was seen to add a quarter to the errors
PEAK = 0.9  # of full scale, where mixing would go beyond it


@dataclass(frozen=True)
class Part:
    """Sentences that are spoken into one folder."""

    name: str
    texts: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class Job:
    """One shard of sentences to speak.

    Attributes:
        file: Its path, without an ending.
        name: Of the part; together with an utterance's number it names the utterance and decides its voice.
        first: Number of its first utterance.
        texts: What is said.
        voices: How many voice variants there are to draw from.
        seed: Seed of the draws.
        unheard: How many of the voices speak dev and test alone.
        natural: Share of the utterances that the neural voice speaks.
    """

    file: Path
    name: str
    first: int
    texts: Sequence[str]
    voices: int
    seed: int
    natural: float = 0.0
    unheard: int = 0


def resample_whole(samples: NDArray[np.float32], source_rate: int, rate: int) -> NDArray[np.float32]:
    """A whole utterance to a lower rate by its spectrum: bins above half the new rate are left out.

    Silence is appended until the lengths fit both rates and factor well; the topmost twentieth of the band is faded
    out, so that an edge does not ring. Unlike a polyphase filter it does not mind a ratio as crooked as 441 to 320.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    common = int(np.gcd(source_rate, rate))
    down, up = source_rate // common, rate // common
    groups = next_fast_len(-(-len(samples) // down) + 8, real=True)
    spectrum = rfft(samples, groups * down)[: groups * up // 2 + 1]
    fade = max(1, len(spectrum) // 20)
    spectrum[-fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
    changed: NDArray[np.float32] = irfft(spectrum, groups * up) * (up / down)
    return changed[: -(-len(samples) * up // down)]


def speaker_of(voice: str) -> str:
    """Who speaks: the voice, in whatever accent."""
    return voice.rsplit("+", 1)[-1]


def part_voices(names: tuple[str, ...], unheard: int, part: str) -> tuple[str, ...]:
    """The voices that speak a part: the last `unheard` speak test and dev, about half each, and the others training.

    Variants of one voice (`steph`, `steph2`) stay together. 0 lets every voice speak everywhere.
    """
    if not unheard:
        return names
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.rstrip("0123456789").lower(), []).append(name)
    shares: dict[str, list[str]] = {"test": [], "dev": [], "train": []}
    for family in reversed(families.values()):
        few = [kind for kind in ("test", "dev") if len(shares[kind]) < unheard // 2]
        shares[few[0] if few else "train"] += family
    if not all(shares.values()):
        raise BadInputError(f"speech.unheard={unheard} of {len(names)} voices leaves none for training, dev or test")
    kind = part.rsplit("-", 1)[-1]
    return tuple(shares.get(kind, shares["train"]))


def speak_shard(job: Job) -> None:
    """Speaks the utterances of a shard, each in the voice that its part, its number and the seed draw."""
    from ilme.data.synth import SynthOptions, draw_voice, voice_names

    options = SynthOptions(seed=zlib.crc32(f"{job.seed}/{job.name}".encode()), natural=job.natural)
    names = part_voices(voice_names(options)[: job.voices], job.unheard, job.name)
    numbers = range(job.first, job.first + len(job.texts))
    voices = [draw_voice(options, number, names) for number in numbers]
    waves = []
    for text, voice in zip(job.texts, voices, strict=True):
        waves.append(to_int16(_said(text, voice)))
        if not waves[-1].any():
            raise BadInputError(f"no sound came out of {text!r}; leave the sentence out of the domain's text")
    ids = [f"{job.name}-{number:06d}" for number in numbers]
    write_shard(job.file, ids, job.texts, [voice.name for voice in voices], waves)


def _said(text: str, voice: Voice | NaturalVoice) -> NDArray[np.float32]:
    """Numbers of the size of int16 samples, RATE a second."""
    from ilme.data.espeak import RATE_HZ, speak
    from ilme.data.neural_voice import NaturalVoice, speak_naturally

    if isinstance(voice, NaturalVoice):
        return resample_whole(speak_naturally(text, voice), voice.rate, RATE) * 32768
    return resample_whole(speak(text, voice).astype(np.float32), RATE_HZ, RATE)


def noisy(
    clean: Sequence[NDArray[np.int16]],
    k: int,
    draw: np.random.Generator,
    snr: tuple[float, float],
    talkers: int,
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Utterance k with other utterances of its set, or white noise, behind it; and what was mixed in.

    x + n · √(P_x / (P_n 10^{SNR/10})), P the mean power.
    """
    speech = clean[k].astype(np.float32) / 32768
    decibels = float(draw.uniform(*snr))
    babble = len(clean) > 1 and draw.random() < BABBLE
    if babble:
        others = [i for i in range(len(clean)) if i != k]
        noise = np.zeros_like(speech)
        for i in draw.choice(others, size=min(talkers, len(others)), replace=False):
            other = clean[i].astype(np.float32) / 32768
            noise += np.resize(np.roll(other, int(draw.integers(len(other)))), len(speech))
    else:
        noise = draw.standard_normal(len(speech)).astype(np.float32)
    power, other_power = float(np.mean(speech**2)), float(np.mean(noise**2))
    mixed = speech + noise * np.sqrt(power / max(other_power * 10 ** (decibels / 10), 1e-12), dtype=np.float32)
    peak = float(np.abs(mixed).max())
    mixed = mixed * min(1.0, PEAK / max(peak, 1e-9))
    return mixed.astype(np.float32), {"snr": round(decibels, 2), "noise": "babble" if babble else "white"}


@dataclass(frozen=True)
class SetJob:
    """Some utterances of a dev or test set: noise is mixed in, and they are written.

    Attributes:
        clean: Folder of the set's shards.
        name: Of the set.
        folder: Where the files go.
        which: Their numbers, as a range.
        snr: Lowest and highest signal-to-noise ratio, in decibels.
        talkers: Voices that babble.
        seed: Seed of the draws.
    """

    clean: Path
    name: str
    folder: Path
    which: range
    snr: tuple[float, float]
    talkers: int
    seed: int


def make_utterances(job: SetJob) -> list[dict[str, Any]]:
    """Writes the audio of a job; the lines of its manifest."""
    listed = list_shards(job.clean)
    clean = np.split(read_samples(job.clean, sum(listed.sizes)), np.cumsum(listed.sizes)[:-1])
    make_folder(job.folder)
    rows = []
    for k in job.which:
        draw = np.random.default_rng([job.seed, *job.name.encode(), k])
        mixed, about = noisy(clean, k, draw, job.snr, job.talkers)
        file = f"{listed.ids[k]}.{SET_FORMAT}"
        write_audio(job.folder / file, mixed, RATE, format="FLAC", subtype="PCM_16")
        row = {
            "audio_filepath": file,
            "id": listed.ids[k],
            "text": listed.texts[k],
            "speaker": speaker_of(listed.voices[k]),
            "duration": round(len(mixed) / RATE, 4),
        }
        rows.append(row | about)
    return rows


def write_opus(path: Path, samples: NDArray[np.float32], level: float) -> None:
    """Opus at a level of libsndfile's scale, from 0 (256 kbit/s) to 1 (6 kbit/s)."""
    write_audio(path, samples, RATE, format="OGG", subtype="OPUS", compression_level=level)
