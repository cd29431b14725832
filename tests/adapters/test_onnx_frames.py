"""The frames of an ONNX encoder: icefall's where its file says nothing, else what it says, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ilme.adapters.onnx_frames import FILTER_BANKS, Frames, over_the_edges
from ilme.data.features import Frontend, FrontendConfig
from ilme.errors import CheckpointError
from tests.adapters.tiny import waves

FILE = Path("encoder.onnx")


def test_frames_without_metadata_are_icefalls():
    frames = Frames.read({"model_type": "zipformer2", "version": "1"}, FILE)
    assert frames == Frames(FILTER_BANKS, snip_edges=False, least=1)
    for size in (16_000, 16_079, 16_080, 5_333):
        audio = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        assert FILTER_BANKS.frames(len(frames.prepare(audio))) == (size + 80) // 160
    assert len(over_the_edges(np.ones(10, np.float32))) >= 400


def test_what_is_written_is_read():
    banks = FrontendConfig(8000, 40, 0.032, 0.016, 50.0, 3600.5, stack=1, stride=1, normalisation="none")
    frames = Frames(banks, snip_edges=True, least=6)
    assert Frames.read(frames.metadata(), FILE) == frames


def test_frames_inside_the_edges_are_those_of_the_frontend():
    frames, (audio,) = Frames(snip_edges=True, least=3), waves(1)
    assert frames.prepare(audio) is audio
    short = frames.prepare(audio[:100])
    assert len(short) == 400 + 2 * 160 and np.array_equal(short[:100], audio[:100]) and not short[100:].any()
    assert Frontend(FILTER_BANKS)([short])[1].tolist() == [3]


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "sample_rate": ("999", "16000.0", "-16000", "sixteen", "", "1e4", "9999999999", "²"),
        "num_mel_bins": ("3", "513", "80.0", "nan"),
        "frame_length": ("0", "25", "nan", "inf", "-0.025", "0.025s"),
        "frame_shift": ("0", "0.0001", "1"),
        "low_freq": ("-20", "nan", "20Hz"),
        "high_freq": ("-100000", "inf"),
        "snip_edges": ("true", "2", "-1"),
        "least_frames": ("0", "101", "1.0"),
    }.items(),
)
def test_numbers_are_checked(name, values):
    for value in values:
        with pytest.raises(CheckpointError, match=rf"encoder.onnx: {name} must be a (whole )?number from"):
            Frames.read({name: value}, FILE)


@pytest.mark.parametrize(
    "wrong", [{"high_freq": "9000"}, {"low_freq": "7600"}, {"high_freq": "-8000"}, {"sample_rate": "1000"}]
)
def test_filters_must_fit_the_audio(wrong):
    with pytest.raises(CheckpointError, match=r"^encoder\.onnx: lowest=.* and highest=.* are no range up to"):
        Frames.read({"high_freq": "7600", **wrong}, FILE)
