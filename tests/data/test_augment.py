"""Augmentation: the SNR that was asked for, masks where they belong, the same draw for the same utterance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.data.augment import AudioAugmentation, Augmenter, SpecAugment, coloured_noise, synthetic_rooms
from ilme.data.batches import cut_waveform
from ilme.data.importing import import_corpus
from ilme.data.manifests import open_cuts
from ilme.errors import BadInputError
from tests.data.speech_corpora import utterances, write_folder, write_nemo


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("augment")
    import_corpus(str(write_nemo(folder / "corpus", utterances(6), extension="wav")), folder / "out")
    return list(open_cuts(folder / "out"))


def changed(cut: Any, config: AudioAugmentation, speech: list[Any], epoch: int = 0, seed: int = 0) -> np.ndarray:
    augmenter = Augmenter(config, 16000, seed, speech)
    return cut_waveform(cut, 16000, lambda c: augmenter(c, epoch)).numpy()


def test_by_default_nothing_changes(cuts: list[Any]) -> None:
    for cut in cuts:
        assert np.array_equal(changed(cut, AudioAugmentation(), cuts), cut_waveform(cut, 16000).numpy())


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_the_length(cuts: list[Any], speed: float) -> None:
    found = changed(cuts[0], AudioAugmentation(speeds=(speed,)), cuts)
    assert len(found) == pytest.approx(cuts[0].num_samples / speed, abs=2)


@pytest.mark.parametrize("snr", [-5.0, 0.0, 10.0])
@pytest.mark.parametrize("kind", ["noise", "babble"])
def test_noise_and_babble_have_the_ratio_drawn(cuts: list[Any], snr: float, kind: str) -> None:
    config = AudioAugmentation(snr=(snr, snr), **{kind: 1.0})  # type: ignore[arg-type]
    for cut in cuts[:3]:
        clean = cut_waveform(cut, 16000).numpy()
        noisy = changed(cut, config, cuts)
        assert noisy.shape == clean.shape
        ratio = 10 * np.log10((clean**2).mean() / ((noisy - clean) ** 2).mean())
        assert ratio == pytest.approx(snr, abs=1.0)  # three talkers overlap at random, so their powers add roughly


def test_noise_of_the_users_own_covers_long_speech(cuts: list[Any], tmp_path: Path) -> None:
    short = utterances(2, seconds=(0.3, 0.4), rate=8000)
    import_corpus(str(write_folder(tmp_path / "noise", short)), tmp_path / "out")
    config = AudioAugmentation(noise=1.0, noises=str(tmp_path / "out"), snr=(0.0, 0.0))
    difference = changed(cuts[0], config, []) - cut_waveform(cuts[0], 16000).numpy()
    quarters = np.array_split(difference, 8)
    assert all(np.abs(quarter).max() > 1e-3 for quarter in quarters)


def test_reverberation_adds_a_tail_and_keeps_length_and_power(cuts: list[Any]) -> None:
    clean = cut_waveform(cuts[0], 16000).numpy()
    wet = changed(cuts[0], AudioAugmentation(reverberation=1.0), cuts)
    assert wet.shape == clean.shape
    assert (wet**2).mean() == pytest.approx((clean**2).mean(), rel=0.01)
    assert 0.2 < np.corrcoef(wet, clean)[0, 1] < 0.9999


def test_a_room_decays_by_sixty_decibels() -> None:
    for room in synthetic_rooms(16000, seed=0, count=4):
        response = room.load_audio()[0]
        assert np.argmax(np.abs(response)) == 0
        tenths = [10 * np.log10((part**2).mean()) for part in np.array_split(response[1:], 10)]
        assert tenths[0] - tenths[-1] == pytest.approx(54, abs=8)  # nine tenths of 60 dB


def test_colours_of_noise_have_their_slopes() -> None:
    for noise, slope in zip(coloured_noise(16000, seed=0), (0, -10, -20), strict=True):
        spectrum = np.abs(np.fft.rfft(noise.load_audio()[0])) ** 2
        frequency = np.fft.rfftfreq(noise.num_samples, 1 / 16000)
        low, high = (spectrum[(frequency > f) & (frequency < 1.2 * f)].mean() for f in (200, 2000))
        assert 10 * np.log10(high / low) == pytest.approx(slope, abs=1.0)


def test_draws_depend_on_seed_epoch_and_id_alone(cuts: list[Any]) -> None:
    config = AudioAugmentation(speeds=(0.9, 1.0, 1.1), reverberation=0.5, noise=0.5, babble=0.5)
    first = changed(cuts[1], config, cuts)
    augmenter = Augmenter(config, 16000, 0, cuts)
    for other in cuts:  # having changed other cuts before makes no difference
        augmenter(other, 0)
    assert np.array_equal(cut_waveform(cuts[1], 16000, lambda c: augmenter(c, 0)).numpy(), first)
    assert not _same(changed(cuts[1], config, cuts, epoch=1), first)
    assert not _same(changed(cuts[1], config, cuts, seed=1), first)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b)


def test_ids_and_texts_survive(cuts: list[Any]) -> None:
    config = AudioAugmentation(speeds=(0.9,), reverberation=1.0, babble=1.0)
    augmenter = Augmenter(config, 16000, 0, cuts)
    for cut in cuts:
        new = augmenter(cut, 0)
        assert new.id == cut.id
        assert [s.text for s in new.supervisions] == [s.text for s in cut.supervisions]


@pytest.mark.parametrize(
    "options",
    [
        {"speeds": ()},
        {"speeds": (3.0,)},
        {"noise": 1.5},
        {"noise": 0.7, "babble": 0.7},
        {"talkers": 0},
        {"snr": (5.0, 0.0)},
    ],
)
def test_impossible_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match=next(iter(options))):
        AudioAugmentation(**options)


def test_babble_needs_speech() -> None:
    with pytest.raises(BadInputError, match="babble"):
        Augmenter(AudioAugmentation(babble=1.0), 16000, 0, [])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    bands=st.integers(0, 3),
    stretches=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_masks_cover_bands_of_all_stacked_frames_and_stretches_of_time(
    lengths: list[int], bands: int, stretches: int, seed: int
) -> None:
    masks = SpecAugment(bands, 10, stretches, 8, 0.3, mel_bins=20)
    size = torch.tensor(lengths)
    drawn = torch.Generator().manual_seed(0)  # what is masked could equal a number by chance
    features = torch.rand(len(lengths), max(lengths), 60, generator=drawn) + 1.0
    features[torch.arange(max(lengths)) >= size[:, None]] = 0.0
    before = features.clone()
    found = masks(features, size, seed)
    assert torch.equal(features, before)
    assert torch.equal(found, masks(features, size, seed))
    touched = found != features
    for row, length in enumerate(lengths):
        assert not touched[row, length:].any()
        inside = touched[row, :length].reshape(length, 3, 20)
        whole = inside.all(2).all(1)
        assert whole.sum() <= stretches * min(8, 0.3 * length + 1)
        banded = inside[~whole]
        if len(banded):
            assert torch.equal(banded, banded[:1, :1].expand_as(banded))
            assert banded[0, 0].sum() <= 10 * bands


def test_masked_values_are_the_mean_and_bad_sizes_are_named() -> None:
    features = torch.rand(1, 30, 240)
    found = SpecAugment(bands=2, stretches=0)(features, torch.tensor([30]), 5)
    masked = found[found != features]
    assert len(masked) > 0
    assert torch.allclose(masked, features.mean())
    with pytest.raises(BadInputError, match="mel_bins=80"):
        SpecAugment()(torch.rand(1, 30, 100), torch.tensor([30]), 5)
    for name, least in {"bands": 0, "share": 0, "mel_bins": 1}.items():
        with pytest.raises(BadInputError, match=f"{name}={least - 1}"):
            SpecAugment(**{name: least - 1})
