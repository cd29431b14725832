"""Rooms and telephones: what they let through, what they add, and that a seed decides it all."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.data.channel import BAND_HZ, CHANNELS, MU, SNR, _mu_law, heard_through
from ilme.errors import BadInputError

RATE = 16_000


def tone(hertz, seconds=1.0, size=0.3, rate=RATE):
    return (size * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def power(samples, low, high, rate=RATE):
    """Of a band, in decibels."""
    spectrum = np.abs(np.fft.rfft(samples.astype(np.float64))) ** 2
    hertz = np.fft.rfftfreq(len(samples), 1 / rate)
    return 10 * np.log10(spectrum[(hertz >= low) & (hertz < high)].sum())


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("length", [401, RATE])
def test_the_same_seed_gives_the_same_sound_of_the_same_length(channel, length):
    speech = tone(440)[:length]
    first, again, other = (heard_through(channel, speech, RATE, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.dtype == np.float32 and first.shape == speech.shape and np.abs(first).max() <= 1
    assert np.array_equal(first, again)
    assert np.array_equal(first, speech) == (channel == "clean")
    assert np.array_equal(first, other) == (channel == "clean")


def test_a_telephone_lets_through_what_lies_in_its_band():
    inside, below, above = (tone(hertz) for hertz in (1_000, 60, 6_000))
    heard = heard_through("telephone", inside + below + above, RATE, np.random.default_rng(0))
    left = power(heard, 990, 1_010)
    assert power(heard, 50, 70) < left - 20 and power(heard, 4_100, 8_000) < left - 20
    assert BAND_HZ[0] < 1_000 < BAND_HZ[1]


def test_eight_bits_are_as_the_law_has_them():
    """255 levels, finer where it is quiet: the error is at most half a step, whose size grows with the sample."""
    x = np.linspace(-1, 1, 20_001)
    heard = _mu_law(x)
    assert len(np.unique(heard)) == 255 and heard[[0, 10_000, -1]] == pytest.approx([-1, 0, 1])
    step = (1 / MU + np.abs(x)) * np.log1p(MU) / 127
    assert (np.abs(heard - x) <= 0.52 * step).all()


@pytest.mark.parametrize("channel", ["room", "telephone"])
def test_noise_is_as_loud_as_was_drawn(channel):
    """Before the tone begins there is noise alone, at a ratio between the bounds, give or take its unevenness."""
    speech = np.concatenate([np.zeros(2 * RATE, np.float32), tone(1_000, 2.0)])
    for seed in range(6):
        heard = heard_through(channel, speech, RATE, np.random.default_rng(seed)).astype(np.float64)
        noise, both = heard[: 2 * RATE - 400], heard[2 * RATE :]
        ratio = 10 * np.log10(np.mean(both**2) / np.mean(noise**2))
        low, high = SNR[channel]
        assert low - 3 < ratio < high + 6, seed


def test_a_room_answers_after_the_sound_has_ended():
    speech = np.concatenate([tone(1_000, 0.5), np.zeros(RATE // 2, np.float32)])
    heard = heard_through("room", speech, RATE, np.random.default_rng(0))
    just_after, later = heard[RATE // 2 + 80 :][:800], heard[-800:]
    assert np.mean(just_after**2) > 2 * np.mean(later**2)


def test_an_unknown_channel_is_named():
    with pytest.raises(BadInputError, match="one of clean, room, telephone, not 'radio'"):
        heard_through("radio", tone(440), RATE, np.random.default_rng(0))
