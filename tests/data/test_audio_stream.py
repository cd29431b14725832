"""A file in blocks is the file as a whole, whatever its rate and channels, and a bad file is refused at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

soundfile = pytest.importorskip("soundfile")

from ilme.data.audio import AudioError, load_audio  # noqa: E402
from ilme.data.audio_stream import AudioStream  # noqa: E402
from ilme.errors import BadInputError  # noqa: E402


def noise(samples: int, channels: int = 1) -> np.ndarray:
    return (np.random.default_rng(samples).standard_normal((samples, channels)) * 0.1).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    st.integers(1, 30_000),
    st.integers(1, 2),
    st.floats(0.01, 1.0),
)
def test_blocks_together_are_the_whole_file(tmp_path_factory, rate, samples, channels, block):
    file = tmp_path_factory.mktemp("audio") / "a.wav"
    soundfile.write(file, noise(samples, channels), rate, subtype="FLOAT")
    stream = AudioStream(file, 16_000, block)
    blocks = list(stream)
    assert stream.seconds == samples / rate
    np.testing.assert_allclose(np.concatenate(blocks), load_audio(file, 16_000), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(list(stream)), np.concatenate(blocks))


@pytest.mark.parametrize("rate", [15_991, 65_521, 96_001, 191_999])
def test_rates_that_share_no_factor_with_the_wanted_one(tmp_path, rate):
    file = tmp_path / "a.wav"
    soundfile.write(file, noise(3 * rate, 2), rate, subtype="FLOAT")
    streamed = np.concatenate(list(AudioStream(file, 16_000, 0.5)))
    assert abs(len(streamed) - 48_000) <= 1
    np.testing.assert_allclose(streamed, load_audio(file, 16_000), atol=1e-5)


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_compressed_files(tmp_path, suffix):
    file = tmp_path / f"a.{suffix}"
    soundfile.write(file, noise(44_100 * 3, 2), 44_100)
    streamed = np.concatenate(list(AudioStream(file, 16_000, 0.5)))
    np.testing.assert_allclose(streamed, load_audio(file, 16_000), atol=1e-5)


def test_bad_files_are_refused_before_the_first_block(tmp_path):
    file = tmp_path / "a.wav"
    bad = noise(16_000)
    bad[12_000] = np.nan
    soundfile.write(file, bad, 16_000, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"NaN or infinite samples after 0\.5 s") as found:
        AudioStream(file, 16_000, 0.5)
    assert found.value.reason == "not finite"
    soundfile.write(file, noise(0), 16_000)
    with pytest.raises(AudioError, match="holds no samples"):
        AudioStream(file)
    soundfile.write(file, noise(16_000), 16_000)
    file.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(AudioError, match="is cut off") as found:
        AudioStream(file)
    assert found.value.reason == "truncated"
    with pytest.raises(AudioError, match="there is no file"):
        AudioStream(tmp_path / "none.wav")
    with pytest.raises(BadInputError, match="must be positive"):
        AudioStream(file, 0)
