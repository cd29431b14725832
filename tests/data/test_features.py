"""The frontend: Kaldi's filterbank, one path for files, arrays and batches, and what it does at the edges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import kaldi_native_fbank
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.data import features
from ilme.data.audio import AudioError
from ilme.data.features import Frontend, FrontendConfig, global_statistics, stack_frames
from ilme.errors import BadInputError

PLAIN = FrontendConfig(normalisation="none")
MEL = replace(PLAIN, stack=1, stride=1)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (0.1 * np.cumsum(random.standard_normal(samples)) / np.sqrt(samples)).astype(np.float32)


def kaldi_filterbank(samples: np.ndarray, rate: int) -> np.ndarray:
    """The same filterbank by an implementation of its own, (T, 80)."""
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = 80
    options.mel_opts.low_freq = 20.0
    options.mel_opts.high_freq = -400.0
    options.use_energy = False
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(rate, samples.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("seconds", [0.025, 0.5, 1.987])
def test_the_filterbank_is_kaldis(rate: int, seconds: float) -> None:
    samples = noise(round(seconds * rate))
    found, lengths = Frontend(replace(MEL, rate=rate))([samples])
    expected = kaldi_filterbank(samples, rate)
    assert found.shape == (1, *expected.shape)
    assert lengths.tolist() == [len(expected)]
    assert np.abs(found[0].numpy() - expected).max() < 2e-3


def test_ten_seconds_are_332_vectors_of_240() -> None:
    features, lengths = Frontend()([noise(160_000)])
    assert features.shape == (1, 332, 240)
    assert lengths.tolist() == [332]
    assert PLAIN.dimension == 240
    assert PLAIN.seconds_per_vector == pytest.approx(0.03)


def test_stacking_joins_consecutive_frames() -> None:
    mel = torch.arange(2 * 8 * 3).reshape(2, 8, 3).float()
    stacked = stack_frames(mel, 3, 3)
    assert stacked.shape == (2, 2, 9)
    for row in range(2):
        for i in range(2):
            assert torch.equal(stacked[row, i], mel[row, 3 * i : 3 * i + 3].flatten())


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(720, 6000), min_size=1, max_size=4),
    normalisation=st.sampled_from(["none", "utterance"]),
)
def test_a_batch_gives_what_each_utterance_gives_alone(lengths: list[int], normalisation: str) -> None:
    frontend = Frontend(replace(PLAIN, normalisation=normalisation))  # type: ignore[arg-type]
    audio = [noise(n, seed) for seed, n in enumerate(lengths)]
    features, counts = frontend(audio)
    for i, samples in enumerate(audio):
        alone, count = frontend([samples])
        assert counts[i] == count[0] == PLAIN.vectors(len(samples)) == alone.size(1)
        assert torch.allclose(features[i, : count[0]], alone[0], atol=1e-4)
        assert not features[i, count[0] :].any()


@pytest.mark.parametrize("most", [1, 7, 90, 96 * 3])
def test_spectra_of_a_few_frames_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    torch.manual_seed(0)
    waveforms, lengths = 0.1 * torch.randn(3, 16000), torch.tensor([16000, 9000, 700])
    frontend, seen = Frontend(), []
    monkeypatch.setattr(features, "FRAMES", 10**9)
    whole = frontend(waveforms, lengths)
    frontend._filterbank.register_forward_hook(lambda _, given, made: seen.append(made.shape[:2].numel()))
    monkeypatch.setattr(features, "FRAMES", most)
    few = frontend(waveforms, lengths)
    torch.testing.assert_close(few, whole, rtol=1e-5, atol=1e-5)
    assert max(seen) == max(3, most // 3 * 3) and sum(seen) == 3 * 98


def test_files_arrays_tensors_and_padded_batches_are_one_path(tmp_path: Path) -> None:
    samples = np.round(noise(8000) * 32767) / 32768
    path = tmp_path / "speech.wav"
    soundfile.write(path, samples, 16000, subtype="PCM_16")
    frontend = Frontend(PLAIN)
    expected, _ = frontend([samples.astype(np.float32)])
    batch = torch.zeros(2, 9000)
    batch[0, :8000] = torch.from_numpy(samples)
    batch[1] = torch.from_numpy(noise(9000, 1))
    for audio, lengths in (
        ([path], None),
        ([str(path)], None),
        ([torch.from_numpy(samples)], None),
        (batch, [8000, 9000]),
        ((batch * 32768).to(torch.int16), torch.tensor([8000, 9000])),
    ):
        found, counts = frontend(audio, lengths)  # type: ignore[arg-type]
        assert counts[0] == expected.size(1)
        assert torch.allclose(found[0, : counts[0]], expected[0], atol=1e-4)


def test_padding_never_leaks_into_features() -> None:
    batch = torch.zeros(1, 6000)
    batch[0, :4000] = torch.from_numpy(noise(4000))
    dirty = batch.clone()
    dirty[0, 4000:] = 5.0
    frontend = Frontend(FrontendConfig(normalisation="utterance"))
    assert torch.equal(frontend(batch, [4000])[0], frontend(dirty, [4000])[0])


def test_utterance_normalisation_gives_mean_zero_and_variance_one() -> None:
    features, lengths = Frontend(replace(MEL, normalisation="utterance"))([noise(16000), noise(9000, 1)])
    for row, length in zip(features, lengths.tolist(), strict=True):
        assert row[:length].mean(0).abs().max() < 1e-4
        assert (row[:length].var(0, correction=0) - 1).abs().max() < 1e-3


def test_global_statistics_normalise_the_data_they_were_measured_on() -> None:
    audio = [noise(16000, seed) for seed in range(4)]
    config = global_statistics(FrontendConfig(), [audio[:1], audio[1:]])
    assert config.normalisation == "global"
    features, _ = Frontend(replace(config, stack=1, stride=1))(audio)
    flat = features.flatten(0, 1)
    assert flat.mean(0).abs().max() < 1e-3
    assert (flat.var(0, correction=0) - 1).abs().max() < 1e-2
    with pytest.raises(BadInputError, match="no frame"):
        global_statistics(FrontendConfig(), [])


def test_the_config_survives_json() -> None:
    config = global_statistics(FrontendConfig(rate=8000), [[noise(8000)]])
    assert FrontendConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    with pytest.raises(BadInputError, match="no setting named bins"):
        FrontendConfig.from_json({"bins": 80})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate=0"),
        ({"stack": -1}, "stack=-1"),
        ({"lowest": -1.0}, "lowest=-1.0 and highest=-400.0 are no range up to 8000 Hz"),
        ({"highest": 9000.0}, "highest=9000.0 are no range"),
        ({"highest": -8000.0}, "highest=-8000.0 are no range"),
        ({"lowest": float("nan")}, "lowest=nan"),
        ({"normalisation": "loud"}, "none, global or utterance"),
        ({"mean": (1.0, 2.0)}, "mean has 2 values"),
        ({"istd": (float("nan"),) * 80}, "not finite"),
        ({"normalisation": "global", "mean": (0.0,) * 80}, "both mean and istd"),
    ],
)
def test_conflicting_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        FrontendConfig(**options)  # type: ignore[arg-type]


def test_global_normalisation_needs_statistics() -> None:
    with pytest.raises(BadInputError, match="global_statistics"):
        Frontend(FrontendConfig(normalisation="global"))


def test_bad_calls_are_named_errors() -> None:
    frontend = Frontend(PLAIN)
    with pytest.raises(AudioError, match="lasts"):
        frontend([noise(PLAIN.shortest - 1)])
    with pytest.raises(AudioError, match="NaN"):
        frontend([np.full(4000, np.nan)])
    for call in (
        lambda: frontend([]),
        lambda: frontend("speech.wav"),
        lambda: frontend(torch.zeros(2, 4000), [4000]),
        lambda: frontend(torch.zeros(2, 4000), rate=8000),
        lambda: frontend([noise(4000)], [4000]),
    ):
        with pytest.raises(BadInputError):
            call()


def test_rows_too_short_for_a_vector_have_length_zero_in_a_padded_batch() -> None:
    features, lengths = Frontend(FrontendConfig())(torch.zeros(3, 4000), [0, PLAIN.shortest - 1, PLAIN.shortest])
    assert lengths.tolist() == [0, 0, 1]
    assert features.isfinite().all()
    features, lengths = Frontend(FrontendConfig())(torch.zeros(1, 0), [0])
    assert lengths.tolist() == [0]


def test_audio_of_another_rate_is_resampled() -> None:
    _, lengths = Frontend(PLAIN)([noise(8000)], rate=8000)
    assert lengths.tolist() == [PLAIN.vectors(16000)]


def test_autocast_does_not_blur_the_features() -> None:
    frontend = Frontend(PLAIN)
    expected, _ = frontend([noise(4000)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(frontend([noise(4000)])[0], expected)


@pytest.mark.cuda
def test_the_gpu_gives_the_same_features() -> None:
    audio = [noise(16000), noise(9000, 1)]
    on_cpu, counts = Frontend()(audio)
    on_gpu, gpu_counts = Frontend(device="cuda")(audio)
    assert on_gpu.device.type == "cuda"
    assert torch.equal(gpu_counts.cpu(), counts)
    assert torch.allclose(on_gpu.cpu(), on_cpu, atol=1e-2)
