"""Audio of every kind becomes mono float32 at the wanted rate, or an error with a reason."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.data.audio import (
    AudioError,
    audio_info,
    load_audio,
    read_audio,
    resample,
    resampling_ratio,
    to_int16,
    write_audio,
)
from ilme.errors import BadInputError, IlmeError

FORMATS = {
    "wav": ("WAV", "PCM_16", 1e-4),
    "flac": ("FLAC", "PCM_16", 1e-4),
    "mp3": ("MP3", "MPEG_LAYER_III", 0.05),
    "ogg": ("OGG", "VORBIS", 0.05),
    "opus": ("OGG", "OPUS", 0.1),
}


def tone(seconds: float = 1.0, rate: int = 16000, hertz: float = 440.0) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def write(folder: Path, extension: str, samples: np.ndarray, rate: int = 16000) -> Path:
    path = folder / f"speech.{extension}"
    soundfile.write(path, samples, rate, format=FORMATS[extension][0], subtype=FORMATS[extension][1])
    return path


def reason(source: object, **options: object) -> str:
    with pytest.raises(AudioError) as caught:
        load_audio(source, **options)  # type: ignore[arg-type]
    assert str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("extension", FORMATS)
def test_every_format_reads_to_the_same_signal(tmp_path: Path, extension: str) -> None:
    samples = tone()
    found = load_audio(write(tmp_path, extension, samples))
    assert found.dtype == np.float32
    assert found.shape == samples.shape
    inner = slice(2000, -2000)  # lossy codecs need a moment to settle
    assert np.abs(found[inner] - samples[inner]).max() < FORMATS[extension][2]


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_any_rate_is_resampled_to_the_same_tone(tmp_path: Path, rate: int) -> None:
    found = load_audio(write(tmp_path, "wav", tone(rate=rate), rate))
    assert len(found) == 16000
    assert np.abs(found[800:-800] - tone()[800:-800]).max() < 2e-3


def test_channels_are_averaged(tmp_path: Path) -> None:
    left, right = tone(hertz=300), tone(hertz=700)
    path = write(tmp_path, "wav", np.stack([left, right], axis=1))
    assert audio_info(path).channels == 2
    assert np.allclose(load_audio(path), (left + right) / 2, atol=1e-4)
    assert np.allclose(load_audio(np.stack([left, right])), (left + right) / 2, atol=1e-6)


def test_info_is_the_header(tmp_path: Path) -> None:
    info = audio_info(write(tmp_path, "flac", tone(0.5, 8000), 8000))
    assert (info.rate, info.channels, info.samples, info.seconds) == (8000, 1, 4000, 0.5)


def test_arrays_and_tensors_of_any_number_format_agree() -> None:
    samples = np.round(tone() * 32767) / 32768
    expected = samples.astype(np.float32)
    for array in (expected, samples, torch.from_numpy(expected), (samples * 32768).astype(np.int16)):
        assert np.array_equal(load_audio(array), expected)


def test_an_array_of_another_rate_is_resampled() -> None:
    assert len(load_audio(tone(rate=8000), 16000, source_rate=8000)) == 16000
    with pytest.raises(BadInputError, match="rates must be positive"):
        resample(tone(), 0, 16000)


def test_a_file_has_its_own_rate(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is for arrays"):
        load_audio(write(tmp_path, "wav", tone()), source_rate=8000)


def test_unusable_audio_has_a_reason(tmp_path: Path) -> None:
    empty_file = tmp_path / "empty.wav"
    empty_file.touch()
    text = tmp_path / "text.wav"
    text.write_text("this is no audio")
    nothing = write(tmp_path, "wav", np.zeros(0, np.float32))
    assert reason(tmp_path / "absent.wav") == "missing"
    assert reason(tmp_path) == "not a file"
    assert reason(empty_file) == "zero bytes"
    assert reason(text) == "not audio"
    assert reason(nothing) == "empty"
    assert reason(np.zeros(0, np.float32)) == "empty"
    assert reason(np.zeros((0, 5), np.float32)) == "empty"
    assert reason(np.array([0.0, np.nan, 0.1])) == "not finite"
    assert reason(np.array([0.0, np.inf])) == "not finite"
    assert reason(tone(0.01), shortest=0.02) == "too short"
    assert reason(np.zeros((2, 3, 4))) == "bad shape"
    assert reason(np.zeros((16000, 2))) == "bad shape"
    assert reason(np.array(["a", "b"])) == "bad shape"


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_file_that_breaks_off_is_never_accepted(tmp_path: Path, extension: str, share: float) -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(32000)
    path = write(tmp_path, extension, noise.astype(np.float32))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert reason(path) in ("truncated", "not audio")


def test_a_wave_file_written_to_a_pipe_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "wav", tone())
    data = bytearray(path.read_bytes())
    data[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(load_audio(path)) == 16000


@settings(max_examples=40, deadline=None)
@given(
    data=st.binary(min_size=1, max_size=600),
    head=st.sampled_from([b"", b"RIFF", b"OggS", b"fLaC", b"ID3\x04"]),
)
def test_random_bytes_are_an_error_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "noise.wav"
    path.write_bytes(head + data)
    with pytest.raises(AudioError):
        read_audio(path)


def test_what_is_too_loud_is_cut_off():
    assert to_int16(np.array([-4e4, -0.6, 0.4, 32767.4, 1e6], np.float32)).tolist() == [-32768, -1, 0, 32767, 32767]


@given(st.integers(1_000, 768_000), st.sampled_from([8_000, 16_000, 22_050, 48_000]))
def test_the_resampler_is_bounded_and_near_to_any_rate(source: int, rate: int) -> None:
    up, down = resampling_ratio(source, rate)
    assert 1 <= up <= 1 << 16 and 1 <= down <= 1 << 16
    assert abs(up / down * source / rate - 1) < 1e-7
    if max(source, rate) <= 1 << 16:
        assert up * source == down * rate


@pytest.mark.parametrize(("suffix", "how"), [("flac", {"subtype": "PCM_16"}), ("ogg", {"subtype": "OPUS"})])
def test_audio_is_written_whole_or_not_at_all(suffix: str, how: dict, tmp_path: Path, monkeypatch) -> None:
    wave = np.sin(np.arange(16_000) / 20).astype(np.float32) / 2
    file = tmp_path / f"a.{suffix}"
    write_audio(file, wave, 16_000, format=suffix.upper(), **how)
    assert abs(len(load_audio(file)) - 16_000) <= 400 and file.stat().st_mode & 0o044
    before = file.read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(IlmeError, match=rf"could not write .*a\.{suffix}.*No space"):
        write_audio(file, wave * 0, 16_000, format=suffix.upper(), **how)
    monkeypatch.undo()
    assert file.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [file.name]
