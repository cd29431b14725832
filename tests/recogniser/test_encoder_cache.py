"""Encoder outputs are made once, and a row of a batch is the utterance alone."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.recogniser import Recogniser
from tests.adapters.tiny import tiny_moonshine, tiny_whisper, waves


def frames(encoded):
    """The encoder states of one utterance, without padding."""
    hidden, mask = encoded.memory["hidden"][0], encoded.memory["mask"]
    return hidden if mask is None else hidden[mask[0]]


@pytest.mark.parametrize("make", [tiny_whisper, tiny_moonshine])
def test_a_row_of_a_batch_is_the_utterance_alone(make, monkeypatch):
    model, audio = make(), waves(3)
    cached, plain = Recogniser(model, cache=EncoderCache()), Recogniser(model)
    runs = []
    encode = cached._encode
    monkeypatch.setattr(cached, "_encode", lambda a: (runs.append(len(a)), encode(a))[1])
    cached.encode(audio)
    for samples in audio:
        row, alone = cached.encode([samples]), plain.encode([samples])
        torch.testing.assert_close(frames(row), frames(alone), atol=1e-4, rtol=1e-4)
        assert row.seconds.tolist() == alone.seconds.tolist()
    assert runs == [3]
    cached.encode(audio[:2])
    assert runs == [3, 2]
