"""Whisper's log-mels: upstream's numbers, utterance by utterance, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ilme.data.features import Frontend, FrontendConfig
from ilme.data.whisper_mel import slaney_filters

CONFIG = FrontendConfig(kind="whisper", stack=1, stride=1, normalisation="none")


def test_equals_the_upstream_extractor() -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    draw = torch.Generator().manual_seed(0)
    waves = 0.1 * torch.randn(3, 40000, generator=draw)
    lengths = torch.tensor([40000, 23457, 400])
    found, frames = Frontend(CONFIG)(waves, lengths)
    assert frames.tolist() == [250, 146, 2]
    for wave, n, t, mel in zip(waves, lengths, frames, found, strict=True):
        theirs = extractor(wave[:n].numpy(), sampling_rate=16000, return_tensors="np").input_features[0].T
        np.testing.assert_allclose(mel[:t].numpy(), theirs[:t], atol=1e-4)


def test_filters_equal_upstreams() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.WhisperFeatureExtractor(feature_size=80).mel_filters.T
    np.testing.assert_allclose(slaney_filters(16000, 400, 80).numpy(), theirs, atol=1e-6)


def test_counts_of_frames_fit_the_features() -> None:
    frontend = Frontend(CONFIG)
    for samples in (400, 401, 559, 560, 16000, 16159):
        mel, frames = frontend(torch.ones(1, samples))
        assert frames.item() == CONFIG.vectors(samples) == mel.shape[1]
    assert CONFIG.vectors(399) == 0
    assert CONFIG.shortest == 400


def test_it_travels_as_json() -> None:
    assert FrontendConfig.from_json(CONFIG.to_json()) == CONFIG
    old = FrontendConfig().to_json()
    del old["kind"]
    assert FrontendConfig.from_json(old) == FrontendConfig()
