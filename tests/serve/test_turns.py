"""Audio in pieces: resampled as the whole is, and cut where somebody speaks."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.data.audio import resample
from ilme.serve.turns import Resampler, TurnOptions, Turns
from ilme.serve.voice import CHUNK


@pytest.mark.parametrize("rates", [(24_000, 16_000), (44_100, 16_000), (8_000, 16_000), (16_000, 16_000)])
@pytest.mark.parametrize("piece", [37, 1000, 50_000])
def test_pieces_are_resampled_as_the_whole(rates: tuple[int, int], piece: int) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 20_000).astype(np.float32)
    whole = resample(samples, *rates)
    resampler = Resampler(*rates)
    parts = [resampler.feed(samples[at : at + piece]) for at in range(0, len(samples), piece)]
    found = np.concatenate([*parts, resampler.feed(samples[:0], last=True)])
    np.testing.assert_allclose(found[: len(whole)], whole, atol=1e-5)


class Loudness:
    """Takes for speech what is not silent."""

    def probabilities(self, samples: np.ndarray) -> np.ndarray:
        return (np.abs(samples.reshape(-1, CHUNK)).max(1) > 0).astype(np.float32)


def test_turns_begin_and_end_where_speech_does() -> None:
    silence, speech = np.zeros(40 * CHUNK, np.float32), np.ones(30 * CHUNK, np.float32)
    audio = np.concatenate([silence, speech, silence, speech])
    turns = Turns(Loudness(), TurnOptions(prefix=0.32, silence=0.64))  # 10 and 20 chunks
    found = [event for at in range(0, len(audio), 777) for event in turns.feed(audio[at : at + 777])]
    assert [(what, at // CHUNK) for what, at in found] == [("start", 30), ("stop", 90), ("start", 100)]
    assert turns.speaking


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        (TurnOptions(prefix=0, silence=0), 71),  # in the first quiet chunk, and not while somebody speaks
        (TurnOptions(threshold=0.1, prefix=0, silence=0.64), 90),
        (TurnOptions(threshold=0.0, prefix=0, silence=0.64), 90),
    ],
)
def test_turns_end_whatever_the_options(options: TurnOptions, stop: int) -> None:
    audio = np.repeat(np.float32([0, 1, 0]), [40 * CHUNK, 30 * CHUNK, 40 * CHUNK])
    turns = Turns(Loudness(), options)
    events = [(what, at // CHUNK) for what, at in turns.feed(audio)]
    assert events[-1] == ("stop", stop) and not turns.speaking


def test_a_click_is_no_turn() -> None:
    audio = np.zeros(50 * CHUNK, np.float32)
    audio[10 * CHUNK : 11 * CHUNK] = 1
    assert Turns(Loudness()).feed(audio) == []
