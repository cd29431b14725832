"""Moonshine, old and new, and Speech2Text with tiny random weights: equal to `transformers`, and every contract."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters.hf import TransformerAED  # noqa: E402
from ilme.ilm import Calibration, internal_lm  # noqa: E402
from ilme.models.packed import PackingError  # noqa: E402
from ilme.testing.contract import attention_rows, check_attention_model, check_internal_lm  # noqa: E402
from tests.adapters.tiny import tiny_moonshine, tiny_moonshine_streaming, tiny_speech2text, waves  # noqa: E402

LABELS = [5, 9, 12, 5, 30]


FAMILIES = [tiny_moonshine, tiny_moonshine_streaming, tiny_speech2text]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda make: make.__name__.removeprefix("tiny_"))
def model(request) -> TransformerAED:
    return request.param()


@pytest.fixture(scope="module")
def speech(model):
    return model.features(waves(2))


def test_logits_equal_transformers(model, speech):
    """Each utterance alone, since upstream's encoders hear the padding of a batch."""
    features, lengths = speech
    ours = attention_rows(model, model.encode(features, lengths), [LABELS, LABELS])
    for b, length in enumerate(lengths.tolist()):
        ids = torch.tensor([[*model.prefix, *LABELS]])
        with torch.no_grad():
            heard = torch.ones(1, length) if model.kind == "moonshine_streaming" else None
            upstream = model.model(features[b : b + 1, :length], attention_mask=heard, decoder_input_ids=ids).logits
        expected = (upstream[0] + model.allowed).log_softmax(-1)
        torch.testing.assert_close(ours[b], expected, atol=1e-4, rtol=0)


def test_contract(model, speech):
    check_attention_model(model, *speech, LABELS)


@pytest.mark.parametrize("name", ["removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned"])
def test_internal_lm_contract(model, speech, name):
    hidden, mask = model.hidden(*speech)
    states = [h[m] for h, m in zip(hidden, mask, strict=True)] if mask is not None else list(hidden)
    scorer = internal_lm(model, name, calibration=Calibration(states, [[5, 6, 7], [9, 8, 7, 6]]))
    check_internal_lm(scorer, model, *speech, LABELS)


def test_packed_weights_give_the_same_scores(model, speech):
    plain = attention_rows(model, model.encode(*speech), [LABELS] * 2)
    model.pack("float32")
    check_attention_model(model, *speech, LABELS)
    packed = attention_rows(model, model.encode(*speech), [LABELS] * 2)
    torch.testing.assert_close(packed, plain, atol=1e-4, rtol=0)


def test_where_float32_cannot_be_packed_nothing_changes(model, speech, monkeypatch):
    def refuse(format):
        raise PackingError("no kernels")

    plain = attention_rows(model, model.encode(*speech), [LABELS] * 2)
    monkeypatch.setattr("ilme.models.packed._check_available", refuse)
    model.pack("float32")
    torch.testing.assert_close(attention_rows(model, model.encode(*speech), [LABELS] * 2), plain, atol=0, rtol=0)
    with pytest.raises(PackingError, match="no kernels"):
        model.pack("int8")
