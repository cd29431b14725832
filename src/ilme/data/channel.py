"""What becomes of clean speech on its way: in a room, or over the telephone. Every draw comes from the generator given.

room        reverberation (`ilme.data.augment.room_response`), then coloured noise
telephone   8 kHz, 300 to 3,400 Hz, coloured noise, eight bits a sample by the μ-law of ITU-T G.711
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.data.audio import Samples, resample
from ilme.data.augment import NOISE_SLOPES, coloured, room_response
from ilme.errors import BadInputError

__all__ = ["CHANNELS", "heard_through"]

CHANNELS = ("clean", "room", "telephone")
SNR = {"room": (10.0, 30.0), "telephone": (15.0, 35.0)}  # decibels
TELEPHONE_HZ, BAND_HZ = 8_000, (300.0, 3_400.0)
MU = 255.0
LOUD = 0.5  # the loudest sample of what a telephone gets, of full scale


def heard_through(channel: str, samples: Samples, rate: int, draw: np.random.Generator) -> Samples:
    """The samples (N,) as one of CHANNELS lets them through, at the same rate and of the same length."""
    if channel not in CHANNELS:
        raise BadInputError(f"a channel is one of {', '.join(CHANNELS)}, not {channel!r}")
    if channel == "room":
        return _in_room(samples, rate, draw)
    return _by_telephone(samples, rate, draw) if channel == "telephone" else samples


def _in_room(samples: Samples, rate: int, draw: np.random.Generator) -> Samples:
    from scipy.signal import fftconvolve

    wet = fftconvolve(samples, room_response(rate, draw))[: len(samples)]
    return _limited(_with_noise(wet, rate, SNR["room"], draw))


def _by_telephone(samples: Samples, rate: int, draw: np.random.Generator) -> Samples:
    from scipy.signal import butter, sosfilt

    band = butter(4, BAND_HZ, "bandpass", fs=TELEPHONE_HZ, output="sos")
    narrow = sosfilt(band, resample(samples, rate, TELEPHONE_HZ))
    sent = _with_noise(narrow, TELEPHONE_HZ, SNR["telephone"], draw)
    sent = LOUD * sent / max(float(np.abs(sent).max(initial=0.0)), 1e-9)
    received = resample(_mu_law(sent).astype(np.float32), TELEPHONE_HZ, rate)
    return _limited(received[: len(samples)])


def _mu_law(samples: NDArray[Any]) -> NDArray[Any]:
    """Samples in −1..1 as they are after eight bits: sign, and 127 steps of log(1 + μ |x|) / log(1 + μ)."""
    steps = np.rint(127 * np.log1p(MU * np.abs(samples)) / np.log1p(MU)) / 127
    heard: NDArray[Any] = np.sign(samples) * np.expm1(steps * np.log1p(MU)) / MU
    return heard


def _with_noise(samples: NDArray[Any], rate: int, snr: tuple[float, float], draw: np.random.Generator) -> NDArray[Any]:
    """Noise of a colour and at a signal-to-noise ratio that are drawn."""
    noise = coloured(len(samples), rate, float(draw.choice(NOISE_SLOPES)), draw)
    powers = [float(np.mean(x**2)) for x in (samples, noise)]
    noise *= np.sqrt(powers[0] / max(powers[1], 1e-12) / 10 ** (draw.uniform(*snr) / 10))
    return samples + noise


def _limited(samples: NDArray[Any]) -> Samples:
    """float32, made softer where it would be cut off."""
    loudest = float(np.abs(samples).max(initial=0.0))
    return (samples / max(loudest, 1.0)).astype(np.float32)
