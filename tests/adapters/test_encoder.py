"""Whisper's encoder, plain and packed, beside that of `transformers`."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters.encoder import read_encoder  # noqa: E402
from ilme.adapters.whisper import feature_extractor  # noqa: E402
from ilme.errors import BadInputError  # noqa: E402
from ilme.models.packed import worth_packing  # noqa: E402
from tests.adapters.tiny import tiny_whisper, waves  # noqa: E402


def test_the_states_are_those_of_transformers():
    model = tiny_whisper()
    features, _ = model.features(waves(2))
    encoder = read_encoder(model.model.get_encoder())
    with torch.no_grad():
        upstream = model.model.get_encoder()(features).last_hidden_state
        torch.testing.assert_close(encoder(features), upstream, atol=1e-5, rtol=0)
        if worth_packing("float32"):
            encoder.pack("float32")
            torch.testing.assert_close(encoder(features), upstream, atol=1e-5, rtol=0)
            encoder.pack("int8")
            rounded = (encoder(features) - upstream).norm() / upstream.norm()
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
