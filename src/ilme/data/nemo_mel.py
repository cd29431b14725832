"""The log-mel filterbank of NeMo's models (Parakeet, Canary, Nemotron), as `transformers` has it, for whole batches.

    x ← x_n − 0.97 x_{n−1},    m = ln(mel · |STFT|² + 2⁻²⁴),    m ← (m − mean) / (std + 10⁻⁵) over an utterance's frames

`transformers` makes the filters with librosa; here they are our own, so that it is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.data.audio import Samples
from ilme.data.whisper_mel import slaney_filters
from ilme.errors import BadInputError

__all__ = ["NemoMel", "NemoMelConfig"]

_GUARD, _EPSILON = 2.0**-24, 1e-5
_MOST = 1 << 16  # samples, bands: what a size in a file may be
SHORTEST = 1_600  # samples: shorter audio is followed by silence, so that there are frames to read


@dataclass(frozen=True)
class NemoMelConfig:
    """What `preprocessor_config.json` says; names are those of `transformers`.

    Attributes:
        feature_size: Mel bands.
        sampling_rate: Samples a second.
        hop_length: Samples from one frame to the next.
        n_fft: Samples of a Fourier transform.
        win_length: Samples of the window in it.
        preemphasis: Share of the sample before that is taken off each; 0 takes nothing off.
        normalise: Bring each band of an utterance to mean 0 and deviation 1.
    """

    feature_size: int = 80
    sampling_rate: int = 16_000
    hop_length: int = 160
    n_fft: int = 512
    win_length: int = 400
    preemphasis: float = 0.97
    normalise: bool = True

    def __post_init__(self) -> None:
        for name in ("feature_size", "sampling_rate", "hop_length", "n_fft", "win_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
                raise BadInputError(f"{name} must be a whole number from 1 to {_MOST}, got {str(value)[:40]}")
        if self.win_length > self.n_fft:
            raise BadInputError(f"win_length={self.win_length} is longer than n_fft={self.n_fft}")
        if not isinstance(self.preemphasis, int | float) or not 0 <= self.preemphasis < 1:
            raise BadInputError(f"preemphasis must lie between 0 and 1, got {str(self.preemphasis)[:40]}")

    @classmethod
    def of(cls, settings: Mapping[str, Any], normalise: bool = True) -> NemoMelConfig:
        """From the settings of an extractor of `transformers`; what it says beyond these fields is left alone."""
        known = {f.name for f in fields(cls)} - {"normalise"}
        given = {k: v for k, v in settings.items() if k in known and v is not None}
        if settings.get("mel_filters_dtype", "float32") != "float32":
            raise BadInputError("filters in a reduced precision (mel_filters_dtype) are not supported")
        if "preemphasis" in settings and settings["preemphasis"] is None:
            given["preemphasis"] = 0.0
        return cls(**given, normalise=normalise)


class NemoMel:
    """Waveforms to features (B, T, bands), 0 after each utterance's end, and lengths (B,)."""

    def __init__(self, config: NemoMelConfig | None = None) -> None:
        self.config = config = config or NemoMelConfig()
        self.filters = slaney_filters(config.sampling_rate, config.n_fft, config.feature_size)
        self.window = torch.hann_window(config.win_length, periodic=False)

    def __call__(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        c, sizes = self.config, torch.tensor([max(len(a), SHORTEST) for a in audio])
        waves = torch.zeros(len(audio), int(sizes.max()))
        for row, samples in zip(waves, audio, strict=True):
            row[: len(samples)] = torch.from_numpy(np.asarray(samples, np.float32))
        if c.preemphasis:
            waves = torch.cat([waves[:, :1], waves[:, 1:] - c.preemphasis * waves[:, :-1]], 1)
            waves[torch.arange(waves.shape[1]) >= sizes[:, None]] = 0.0
        spectrum = torch.stft(
            waves, c.n_fft, c.hop_length, c.win_length, self.window, return_complex=True, pad_mode="constant"
        )
        power = torch.view_as_real(spectrum).pow(2).sum(-1)
        bands = torch.log(self.filters @ power + _GUARD).transpose(1, 2)
        lengths = sizes // c.hop_length
        inside = (torch.arange(bands.shape[1]) < lengths[:, None])[:, :, None]
        if c.normalise:
            mean = (bands * inside).sum(1, keepdim=True) / lengths[:, None, None]
            variance = ((bands - mean).square() * inside).sum(1, keepdim=True) / (lengths - 1)[:, None, None]
            bands = (bands - mean) / (variance.sqrt() + _EPSILON)
        return (bands * inside)[:, : int(lengths.max())], lengths
