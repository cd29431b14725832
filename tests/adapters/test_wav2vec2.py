"""wav2vec 2.0 and HuBERT: upstream's features and logits on tiny random weights, the contract, and their letters."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.recogniser.loading import load_model
from ilme.testing.contract import check_ctc
from tests.adapters import frame_models
from tests.adapters.tiny import waves


@pytest.fixture(scope="module", params=["Wav2Vec2", "Hubert"])
def folder(request, tmp_path_factory):
    made = tmp_path_factory.mktemp(request.param)
    return made, frame_models.wav2vec2(made, request.param)


@torch.no_grad()
def test_features_and_logits_are_upstreams(folder):
    from transformers import AutoFeatureExtractor

    name, upstream = folder
    model, audio = load_model(name), waves(3)
    extractor = AutoFeatureExtractor.from_pretrained(name)
    features, lengths = model.features(audio)
    h, frames = model.encode(features, lengths)
    logits, allowed = model.emit(h), model.allowed == 0
    for b, samples in enumerate(audio):
        theirs = extractor(samples, sampling_rate=16_000, return_tensors="pt")["input_values"]
        torch.testing.assert_close(features[b : b + 1, : lengths[b]], theirs, rtol=0, atol=1e-5)
        expected = upstream(theirs).logits[0]
        assert len(expected) == frames[b]
        torch.testing.assert_close(logits[b, : frames[b]][:, allowed], expected[:, allowed], rtol=0, atol=1e-5)
    assert [model.tokens.pieces[i] for i in (~allowed).nonzero().flatten().tolist()] == ["<s>", "</s>"]


def test_the_contract(folder):
    model = load_model(folder[0])
    assert model.kind == type(folder[1]).__name__.removesuffix("ForCTC").lower()
    check_ctc(model, *model.features(waves(3)))


def test_words_are_spelled_and_read_again(folder):
    tokenizer = load_model(folder[0]).tokenizer
    assert tokenizer.decode(tokenizer.encode("HELLO ALL")) == "HELLO ALL"
    assert tokenizer.tokens.pieces[tokenizer.encode("A B")[1]] == "|"
    assert tokenizer.tokens.unk == 3
