"""What training does to audio and features so that a model meets more than its corpus holds.

Audio is changed through Lhotse's cuts (speed, reverberation, mixing at a signal-to-noise ratio), features
by masks. Every draw depends on the seed, the epoch and the utterance's id alone: the same utterance is
changed in the same way whatever batch, worker or rank it lands in, and after a restart.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ilme.data.features import frame_mask
from ilme.errors import BadInputError

__all__ = [
    "NOISE_SLOPES",
    "AudioAugmentation",
    "Augmenter",
    "SpecAugment",
    "coloured",
    "coloured_noise",
    "room_response",
    "synthetic_rooms",
]

NOISE_SLOPES = (0.0, 1.0, 2.0)  # white, pink and brown
_SHORTEST_PIECE = 0.05  # seconds; a rest shorter than this stays free of noise


@dataclass(frozen=True)
class AudioAugmentation:
    """How often and how much audio is changed. The default changes nothing.

    Attributes:
        speeds: One factor is drawn per utterance; 1 leaves it as it is. Pitch changes along, as with a tape.
        reverberation: Probability of a room.
        rooms: Cuts of room impulse responses; None: synthetic ones (decaying noise, T60 of 0.1–0.8 s).
        noise: Probability of background noise.
        noises: Cuts of noise; None: synthetic white, pink and brown noise.
        babble: Probability of other speakers in the background; they come from the training cuts themselves.
        talkers: How many other speakers babble.
        snr: Lowest and highest signal-to-noise ratio drawn, in decibels.
    """

    speeds: tuple[float, ...] = (1.0,)
    reverberation: float = 0.0
    rooms: str | None = None
    noise: float = 0.0
    noises: str | None = None
    babble: float = 0.0
    talkers: int = 3
    snr: tuple[float, float] = (0.0, 20.0)

    def __post_init__(self) -> None:
        if not self.speeds or not all(0.5 <= s <= 2.0 for s in self.speeds):
            raise BadInputError(f"speeds={self.speeds} must be factors between 0.5 and 2")
        for name in ("reverberation", "noise", "babble"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInputError(f"{name}={getattr(self, name)} is a probability, between 0 and 1")
        if self.noise + self.babble > 1:
            raise BadInputError(f"noise={self.noise} and babble={self.babble} exclude each other: sum at most 1")
        if self.talkers < 1:
            raise BadInputError(f"talkers={self.talkers} must be at least 1")
        if len(self.snr) != 2 or not self.snr[0] <= self.snr[1]:
            raise BadInputError(f"snr={self.snr} must be a lowest and a highest value")


class Augmenter:
    """Applies `AudioAugmentation` to Lhotse cuts that are already at one sampling rate."""

    def __init__(self, config: AudioAugmentation, rate: int, seed: int, speech: Sequence[Any] = ()) -> None:
        """
        Args:
            config: What to do.
            rate: Samples a second of all cuts.
            seed: Decides every draw.
            speech: Cuts that babble is made of.
        """
        self._config, self._rate, self._seed = config, rate, seed
        self._speech = [cut for cut in speech if cut.duration >= _SHORTEST_PIECE] if config.babble else []
        if config.babble and not self._speech:
            raise BadInputError("babble needs cuts of speech, and there are none")
        self._noises = self._cuts(config.noises, coloured_noise(rate, seed)) if config.noise else []
        self._rooms = self._cuts(config.rooms, synthetic_rooms(rate, seed)) if config.reverberation else []

    def _cuts(self, path: str | None, otherwise: list[Any]) -> list[Any]:
        from ilme.data.manifests import open_cuts

        if path is None:
            return [recording.to_cut() for recording in otherwise]
        cuts = [cut for cut in open_cuts(path) if cut.duration >= _SHORTEST_PIECE]
        if not cuts:
            raise BadInputError(f"{path} holds no cut of at least {_SHORTEST_PIECE} s")
        return cuts

    def __call__(self, cut: Any, epoch: int) -> Any:
        """The changed cut, under its own id."""
        draw = random.Random(f"{self._seed}/{epoch}/{cut.id}")
        config, name = self._config, cut.id
        speed = draw.choice(config.speeds)
        if speed != 1.0:
            cut = cut.perturb_speed(speed, affix_id=False)
        if draw.random() < config.reverberation:
            room = self._at_rate(draw.choice(self._rooms)).recording
            cut = cut.reverb_rir(rir_recording=room, affix_id=False)
        kind = draw.random()
        if kind < config.noise:
            cut = self._mix(cut, self._noises, draw.uniform(*config.snr), draw, set())
        elif kind < config.noise + config.babble:
            # n equally loud talkers together have n times the power of one:  SNR_each = SNR + 10 log₁₀ n
            each = draw.uniform(*config.snr) + 10 * math.log10(config.talkers)
            heard = {name}
            for _ in range(config.talkers):
                cut = self._mix(cut, self._speech, each, draw, heard)
        return cut

    def _mix(self, cut: Any, pool: list[Any], snr: float, draw: random.Random, used: set[str]) -> Any:
        """Covers the whole cut with pieces drawn from the pool, each at this SNR to the clean speech.

        Pieces whose ids are in `used` are avoided, unless a few draws find no other; what is drawn is added to it.
        """
        length, filled = cut.duration, 0.0
        while length - filled > _SHORTEST_PIECE:
            draws = (draw.choice(pool) for _ in range(8))
            piece = next((other for other in draws if other.id not in used), pool[0])
            used.add(piece.id)
            piece = self._at_rate(piece).drop_supervisions()
            wanted = length - filled
            if piece.duration > wanted:
                start = draw.uniform(0, piece.duration - wanted)
                piece = piece.truncate(offset=start, duration=wanted, preserve_id=True)
            cut = cut.mix(piece, offset_other_by=filled, snr=snr, preserve_id="left")
            filled += piece.duration
        return cut if cut.duration <= length else cut.truncate(duration=length, preserve_id=True)

    def _at_rate(self, cut: Any) -> Any:
        if cut.num_channels > 1:
            cut = cut.with_channels(0)
        return cut if cut.sampling_rate == self._rate else cut.resample(self._rate)


def synthetic_rooms(rate: int, seed: int, count: int = 32) -> list[Any]:
    """Room impulse responses as Lhotse recordings: h(t) = δ(t) + g · n(t) · 10^(−3 t / T60), n white noise.

    g sets the direct-to-reverberant ratio, drawn between 0 and 12 dB; T60 is drawn between 0.1 and 0.8 s.
    Lhotse's own random rooms need torchaudio and draw from a generator that cannot be seeded.
    """
    generator = np.random.default_rng([seed, 1])
    return [_in_memory(room_response(rate, generator), rate, f"room-{i}") for i in range(count)]


def room_response(rate: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """One such response."""
    t60, ratio_db = draw.uniform(0.1, 0.8), draw.uniform(0.0, 12.0)
    time = np.arange(1, int(t60 * rate)) / rate
    tail = draw.standard_normal(time.size) * 10 ** (-3 * time / t60)
    tail *= 10 ** (-ratio_db / 20) / np.linalg.norm(tail)
    return np.concatenate([[1.0], tail])


def coloured_noise(rate: int, seed: int, seconds: float = 12.0) -> list[Any]:
    """White, pink and brown noise as Lhotse recordings: power falls as f^0, f^−1 and f^−2 above 20 Hz."""
    generator = np.random.default_rng([seed, 2])
    names = ("white", "pink", "brown")
    return [
        _in_memory(coloured(int(seconds * rate), rate, slope, generator), rate, f"noise-{name}")
        for name, slope in zip(names, NOISE_SLOPES, strict=True)
    ]


def coloured(samples: int, rate: int, slope: float, draw: np.random.Generator) -> NDArray[np.float64]:
    """Noise (N,) whose power falls as f^−slope above 20 Hz."""
    frequency = np.maximum(np.fft.rfftfreq(samples, 1 / rate), 20.0)
    spectrum = np.fft.rfft(draw.standard_normal(samples)) * frequency ** (-slope / 2)
    return np.fft.irfft(spectrum, samples)


def _in_memory(samples: np.ndarray[Any, Any], rate: int, name: str) -> Any:
    import soundfile
    from lhotse import Recording

    data = io.BytesIO()
    scaled = (0.5 * samples / np.abs(samples).max()).astype(np.float32)
    soundfile.write(data, scaled, rate, format="WAV", subtype="FLOAT")
    return Recording.from_bytes(data.getvalue(), recording_id=name)


@dataclass(frozen=True)
class SpecAugment:
    """Masks bands of mel bins and stretches of time (Park et al. 2019), on stacked features.

    Lhotse's version loops over utterances on the host and draws from three global generators; this one is a
    few tensor operations on the features' device, with draws that depend on the seed and the utterances
    alone. Masked values become the utterance's mean. There is no time warping.

    Attributes:
        bands: Masks over mel bins; 0 turns them off.
        band_width: Widest band, in mel bins.
        stretches: Masks over time; 0 turns them off.
        stretch_width: Longest stretch, in feature vectors.
        share: Largest share of an utterance that one stretch may cover.
        mel_bins: Mel bins in each of the stacked frames.
    """

    bands: int = 2
    band_width: int = 27
    stretches: int = 4
    stretch_width: int = 16
    share: float = 0.1
    mel_bins: int = 80

    def __post_init__(self) -> None:
        for name in ("bands", "band_width", "stretches", "stretch_width"):
            if getattr(self, name) < 0:
                raise BadInputError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 <= self.share <= 1 or self.mel_bins < 1:
            raise BadInputError(f"share={self.share} must be between 0 and 1, mel_bins={self.mel_bins} at least 1")

    def __call__(self, features: Tensor, lengths: Tensor, seed: int) -> Tensor:
        """Masked features (B, T', D) of features (B, T', D) with lengths (B,)."""
        B, T, D = features.shape
        if D % self.mel_bins:
            raise BadInputError(f"features of {D} values are no stack of frames of mel_bins={self.mel_bins}")
        generator = torch.Generator().manual_seed(seed)
        mel = torch.arange(self.mel_bins)
        widths = torch.rand(B, self.bands, generator=generator) * (min(self.band_width, self.mel_bins) + 1)
        starts = torch.rand(B, self.bands, generator=generator)
        band = _inside(mel, widths.floor(), starts, torch.tensor(float(self.mel_bins)))  # (B, M)
        band = band.repeat(1, D // self.mel_bins).to(features.device, non_blocking=True)

        valid = frame_mask(lengths, T)
        size = lengths.float()[:, None]
        longest = (self.share * size).clamp(max=self.stretch_width)
        draws = torch.rand(2, B, self.stretches, generator=generator).to(features.device, non_blocking=True)
        time = torch.arange(T, device=features.device)
        stretch = _inside(time, (draws[0] * (longest + 1)).floor(), draws[1], size)  # (B, T')

        masked = (band[:, None, :] | stretch[:, :, None]) & valid[:, :, None]
        mean = features.sum((1, 2)) / (lengths.clamp(min=1) * D)  # padding is zero
        return torch.where(masked, mean[:, None, None].to(features.dtype), features)


def _inside(position: Tensor, widths: Tensor, starts: Tensor, size: Tensor) -> Tensor:
    """(B, n) of positions (n,): inside any of the masks (B, m), which start at `starts` of the room left."""
    first = (starts * (size - widths + 1).clamp(min=0)).floor()[..., None]
    return ((position >= first) & (position < first + widths[..., None])).any(1)
