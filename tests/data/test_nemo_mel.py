"""NeMo's log-mels: upstream's numbers, utterance by utterance, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ilme.data.nemo_mel import SHORTEST, NemoMel, NemoMelConfig
from ilme.errors import BadInputError


def noise(*sizes):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(n).astype(np.float32) * 0.1 for n in sizes]


@pytest.mark.parametrize("kind", ["parakeet", "nemotron_asr_streaming"])
def test_equals_the_upstream_extractor(kind):
    pytest.importorskip("transformers")
    from tests.adapters.frame_models import upstream_extractor

    name = {"parakeet": "Parakeet", "nemotron_asr_streaming": "NemotronAsrStreaming"}[kind]
    audio = noise(24_000, 16_123, 8_000)
    theirs = getattr(upstream_extractor(kind), f"{name}FeatureExtractor")()(
        audio, sampling_rate=16_000, return_tensors="pt"
    )
    found, lengths = NemoMel(NemoMelConfig(normalise=kind == "parakeet"))(audio)
    assert lengths.tolist() == theirs["attention_mask"].sum(1).tolist() == [150, 100, 50]
    torch.testing.assert_close(found, theirs["input_features"][:, :150], rtol=0, atol=2e-4)


def test_a_batch_gives_what_each_gives_alone():
    mel, audio = NemoMel(), noise(24_000, 9_000)
    together, lengths = mel(audio)
    for b, samples in enumerate(audio):
        alone, own = mel([samples])
        assert own.item() == lengths[b]
        torch.testing.assert_close(together[b, : lengths[b]], alone[0], rtol=0, atol=1e-5)
    assert not together[1, lengths[1] :].any()


def test_short_audio_and_silence_give_finite_features():
    features, lengths = NemoMel()([np.zeros(10, np.float32), np.zeros(0, np.float32)])
    assert features.isfinite().all() and lengths.tolist() == [SHORTEST // 160] * 2


def test_settings_of_a_file_are_checked():
    config = NemoMelConfig.of({"feature_size": 128, "padding_value": 0.0, "preemphasis": None, "dither": 1})
    assert config.feature_size == 128 and config.preemphasis == 0
    for wrong in ({"n_fft": -1}, {"hop_length": "8"}, {"win_length": 900}, {"preemphasis": 2}, {"feature_size": 10**9}):
        with pytest.raises(BadInputError, match=next(iter(wrong))):
            NemoMelConfig.of(wrong)
    with pytest.raises(BadInputError, match="reduced precision"):
        NemoMelConfig.of({"mel_filters_dtype": "bfloat16"})
