"""Whisper's encoder, plain and packed, beside that of `transformers`."""

from __future__ import annotations

import math

import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters.encoder import read_encoder, thinned  # noqa: E402
from ilme.adapters.whisper import WhisperOptions, feature_extractor  # noqa: E402
from ilme.errors import BadInputError  # noqa: E402
from ilme.ilm import calibrate  # noqa: E402
from ilme.models.packed import worth_packing  # noqa: E402
from tests.adapters.tiny import tiny_whisper, waves  # noqa: E402


def test_the_states_are_those_of_transformers():
    model = tiny_whisper()
    features, _ = model.features(waves(2))
    encoder = read_encoder(model.model.get_encoder())
    with torch.no_grad():
        upstream = model.model.get_encoder()(features).last_hidden_state
        torch.testing.assert_close(encoder(features)[0], upstream, atol=1e-5, rtol=0)
        if worth_packing("float32"):
            encoder.pack("float32")
            torch.testing.assert_close(encoder(features)[0], upstream, atol=1e-5, rtol=0)
            encoder.pack("int8")
            rounded = (encoder(features)[0] - upstream).norm() / upstream.norm()
            assert 0 < float(rounded) < 0.05


def test_the_features_are_those_of_transformers():
    model = tiny_whisper()
    audio = [0.3 * wave for wave in waves(3)]
    features, lengths = model.features(audio)
    theirs = feature_extractor(model.model.config)(audio, sampling_rate=16_000, return_tensors="pt")["input_features"]
    torch.testing.assert_close(features, theirs, atol=2e-4, rtol=0)
    assert lengths.tolist() == [len(a) // 160 for a in audio]
    alone, _ = model.features(audio[2:])
    torch.testing.assert_close(alone[0], features[2], atol=1e-6, rtol=0)


def test_an_extractor_of_other_features_is_refused():
    model = tiny_whisper()
    other = feature_extractor(model.model.config)
    other.hop_length = 128
    with pytest.raises(BadInputError, match="hop_length=128, and this Whisper model needs 160"):
        type(model)(model.model, model.tokenizer, extractor=other)


def test_places_that_are_read_and_what_they_count():
    places, counts = thinned(torch.tensor([3, 9, 6]), 10, 4)
    assert places.tolist() == [[0, 1, 2, 3, 7, 9, 9, 9, 9, 9], list(range(10)), [0, 1, 2, 3, 4, 5, 6, 9, 9, 9]]
    four, none = math.log(4), -math.inf
    assert counts[0].tolist() == pytest.approx([0, 0, 0, four, four, none, none, none, none, none])
    assert counts[1].tolist() == pytest.approx([0] * 9 + [four])
    assert counts[2].tolist() == pytest.approx([0] * 6 + [four, none, none, none])


@pytest.mark.parametrize("packed", [False, True])
def test_a_position_that_counts_for_four_is_four_equal_positions(packed, monkeypatch):
    """Where positions of silence are equal by fours, one in four of them gives the speech the same states."""
    if packed and not worth_packing("float32"):
        pytest.skip("this build of torch cannot pack float32")
    monkeypatch.setattr("ilme.adapters.encoder.GROUP", 1)
    encoder = read_encoder(tiny_whisper().model.get_encoder())
    encoder.convolutions[0].bias.data.zero_()  # silence, here of zeros, is then what a convolution sees beyond the end
    encoder.positions = encoder.positions.clone()
    encoder.positions[22:] = encoder.positions[22::4].repeat_interleave(4, 0)
    features = torch.randn(2, 80, 100, generator=torch.Generator().manual_seed(2))
    features[0, :, 40:] = 0
    features[1, :, 10:] = 0
    if packed:
        encoder.pack("float32")
    speech = torch.tensor([22, 18])
    with torch.no_grad():
        whole, _ = encoder(features)
        thin, counts = encoder(features, speech, 4)
        alone, _ = encoder(features[1:], speech[1:], 4)
    torch.testing.assert_close(thin[0, :22], whole[0, :22], atol=1e-5, rtol=0)
    torch.testing.assert_close(thin[0, 22:29], whole[0, 22::4], atol=1e-5, rtol=0)
    assert thin.shape == (2, 29, 16) and counts.shape == (2, 29)
    torch.testing.assert_close(thin[1, : alone.shape[1]], alone[0], atol=1e-5, rtol=0)


def test_a_model_reads_less_silence_and_finds_nearly_the_same(monkeypatch):
    monkeypatch.setattr("ilme.adapters.whisper.MARGIN", 2)
    monkeypatch.setattr("ilme.adapters.encoder.GROUP", 2)
    whole, thin = (tiny_whisper(options=WhisperOptions(silence=n)) for n in (1, 5))
    audio = [wave[:4000] for wave in waves(2)]
    states, mask = whole.hidden(*whole.features(audio))
    fewer, counts = thin.hidden(*thin.features(audio))
    assert mask is None and states.shape[1] == 50 and fewer.shape[1] == counts.shape[1] == 22
    a, b = whole.start(whole.memory(states))[0], thin.start(thin.memory(fewer, counts))[0]
    torch.testing.assert_close(a, b, atol=0.1, rtol=0)
    labels = torch.tensor([5, 9])
    rows, frame = thin.attended(labels, thin.memory(fewer[:1], counts[:1]), 0.25)
    assert rows.shape == (3, 13) and frame == 0.02
    with pytest.raises(BadInputError, match="silence must be a whole number from 0 to 50"):
        WhisperOptions(silence=-1)


def test_an_internal_lm_that_is_averaged_hears_whole_windows(monkeypatch):
    monkeypatch.setattr("ilme.adapters.whisper.MARGIN", 2)
    model = tiny_whisper()
    calibration = calibrate(model, [wave[:4000] for wave in waves(2)], ["w5", "w6 w7"])
    assert [len(h) for h in calibration.encoded] == [50, 50]
