"""Whisper's log-mel filterbank: the features that its encoder was trained on, for whole batches on any device.

    x = log₁₀ max(mel · |STFT|², 10⁻¹⁰),    x ← max(x, max x − 8),    x ← (x + 4) / 4

Frames are centred on every hop, the start is mirrored, and the end is followed by silence, as it is in Whisper, which
pads audio to 30 s. Frame t of an utterance shorter than that is therefore Whisper's frame t.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["WhisperMel", "slaney_filters"]

_FLOOR = 1e-10
_RANGE = 8.0  # in log₁₀ units below the loudest value of an utterance


class WhisperMel(nn.Module):
    """(B, N) waveforms, silent after each utterance's end, to (B, ⌊N / hop⌋, mel_bins)."""

    filters: Tensor
    window: Tensor

    def __init__(self, rate: int = 16000, mel_bins: int = 80, window: int = 400, hop: int = 160) -> None:
        super().__init__()
        self.size, self.hop = window, hop
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.register_buffer("filters", slaney_filters(rate, window, mel_bins), persistent=False)

    def forward(self, waves: Tensor) -> Tensor:
        frames, half = waves.shape[1] // self.hop, self.size // 2
        mirrored = waves[:, 1 : half + 1].flip(1)
        padded = nn.functional.pad(torch.cat([mirrored, waves], 1), (0, half))
        spectrum = torch.stft(padded, self.size, self.hop, window=self.window, center=False, return_complex=True)
        power = spectrum[..., :frames].abs().square()  # (B, bins, T)
        log = (self.filters @ power).clamp(min=_FLOOR).log10()
        loudest = log.amax((1, 2), keepdim=True)
        return ((torch.maximum(log, loudest - _RANGE) + 4.0) / 4.0).transpose(1, 2)


def slaney_filters(rate: int, size: int, mel_bins: int) -> Tensor:
    """Triangles of equal area (mel_bins, size / 2 + 1), evenly spaced from 0 to half the rate on Slaney's mel scale.

    The scale is linear below 1 kHz (15 mels) and logarithmic above: 27 mels for each factor of 6.4.
    """
    step, knee, growth = 200.0 / 3, 15.0, torch.tensor(6.4, dtype=torch.float64).log() / 27
    top = knee + torch.log(torch.tensor(rate / 2 / 1000.0, dtype=torch.float64)) / growth
    mels = torch.linspace(0.0, float(top), mel_bins + 2, dtype=torch.float64)
    edges = torch.where(mels < knee, mels * step, 1000.0 * torch.exp(growth * (mels - knee)))
    bins = torch.linspace(0.0, rate / 2, size // 2 + 1, dtype=torch.float64)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = torch.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clamp(min=0.0)
    return (triangles * (2.0 / (high - low))).float()
