"""Recordings at another speed, or through a telephone's band: long tensors of samples, on any device.

    y[k] = Σ_n x[n] h(k / r − n),    h(t) = c sinc(c t) cos²(π t / 2w),  |t| < w

r is the ratio of the lengths, and c, the pass band as a share of the old one, is at most r, so that nothing is folded
back. Each of the `up` phases of y is one row of a strided convolution.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["change_speed", "low_pass"]

_ZEROS = 12  # crossings of h on each side
_EDGE = 0.97  # of the pass band that is kept
_BLOCK = 1 << 23  # samples filtered at once


def change_speed(samples: Tensor, factor: float) -> tuple[Tensor, Fraction]:
    """int16 (N,) played `factor` times as fast, and the ratio of the lengths: (⌈N r⌉,), r = 1 / factor."""
    ratio = 1 / Fraction(factor).limit_denominator(50)
    return _filter(samples, ratio.numerator, ratio.denominator, min(1.0, float(ratio))), ratio


def low_pass(samples: Tensor, share: float) -> Tensor:
    """int16 (N,) with the lowest `share` of the band alone: 0.5 keeps what a recording at half the rate has."""
    return _filter(samples, 1, 1, share)


def _filter(samples: Tensor, up: int, down: int, band: float) -> Tensor:
    """The formula above with r = up / down and c = band, less its edge: int16 (N,) to (⌈N r⌉,)."""
    wanted = -(-len(samples) * up // down)
    if up == down and band >= 1.0:
        return samples.clone()
    c = band * _EDGE
    half = round(_ZEROS / c)
    phase = torch.arange(up, dtype=torch.float64)[:, None] * down / up
    t = phase - torch.arange(-half, half + down, dtype=torch.float64)
    window = torch.cos(torch.pi * t / (2 * half)).square() * (t.abs() < half)
    kernel = (c * torch.sinc(c * t) * window).float().to(samples.device)[:, None]  # (up, 1, 2 half + down)
    step = -(-_BLOCK // down) * down
    out = []
    for start in range(0, len(samples), step):
        low, high = max(0, start - half), min(len(samples), start + step + half + down)
        block = functional.pad(samples[low:high].float(), (half - (start - low), 2 * half + 2 * down))
        phases = functional.conv1d(block[None, None], kernel, stride=down)[0]  # (up, blocks)
        groups = -(-min(step, len(samples) - start) // down)
        out.append(phases[:, :groups].t().reshape(-1).round().clamp(-32768, 32767).to(torch.int16))
    return torch.cat(out)[:wanted] if out else samples.clone()
