"""Canary and Cohere's model with tiny random weights: equal to `transformers`, and every contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "CanaryForConditionalGeneration"):
    pytest.skip("this transformers has no Canary", allow_module_level=True)

from ilme.adapters.canary import Canary, CanaryOptions, dithered  # noqa: E402
from ilme.data.nemo_mel import NemoMel, NemoMelConfig  # noqa: E402
from ilme.errors import BadInputError, CheckpointError  # noqa: E402
from ilme.ilm import Calibration, internal_lm  # noqa: E402
from ilme.testing.contract import attention_rows, check_attention_model, check_internal_lm  # noqa: E402
from ilme.tokens import Tokens  # noqa: E402
from tests.adapters.tiny import CanaryWords, tiny_canary, tiny_cohere_asr, waves  # noqa: E402

LABELS = [5, 9, 12, 5, 30]
BEFORE = ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>"]
AFTER = ["<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"]


@pytest.fixture(scope="module", params=[tiny_canary, tiny_cohere_asr], ids=["canary", "cohere_asr"])
def model(request) -> Canary:
    return request.param()


@pytest.fixture(scope="module")
def speech(model):
    return model.features(waves(2))


def test_logits_equal_transformers(model, speech):
    features, lengths = speech
    ours = attention_rows(model, model.encode(features, lengths), [LABELS, LABELS])
    heard = torch.arange(features.shape[1]) < lengths[:, None]
    assert not heard.all(), "utterances of different lengths, or padding is not tested"
    with torch.no_grad():
        ids = torch.tensor([[*model.prefix, *LABELS]] * 2)
        upstream = model.model(features, attention_mask=heard, decoder_input_ids=ids).logits
    expected = (upstream[:, len(model.prefix) - 1 :] + model.allowed).log_softmax(-1)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_contract(model, speech):
    check_attention_model(model, *speech, LABELS)


@pytest.mark.parametrize("name", ["removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned"])
def test_internal_lm_contract(model, speech, name):
    hidden, mask = model.hidden(*speech)
    states = [h[m] for h, m in zip(hidden, mask, strict=True)]
    scorer = internal_lm(model, name, calibration=Calibration(states, [[5, 6, 7], [9, 8, 7, 6]]))
    check_internal_lm(scorer, model, *speech, LABELS)


def test_what_is_written_is_told_before():
    pieces = CanaryWords().tokens.pieces
    assert [pieces[i] for i in tiny_canary().prefix] == [*BEFORE, "<|en|>", "<|en|>", "<|pnc|>", *AFTER]
    plain = tiny_cohere_asr(CanaryOptions(language="de", punctuation=False))
    assert [pieces[i] for i in plain.prefix] == ["▁", *BEFORE, "<|de|>", "<|de|>", "<|nopnc|>", *AFTER]
    translated = tiny_canary(CanaryOptions(language="de", target="en"))
    assert [pieces[i] for i in translated.prefix][3:5] == ["<|de|>", "<|en|>"]
    with pytest.raises(BadInputError, match="no language 'xx'"):
        tiny_canary(CanaryOptions(language="xx"))


def test_another_tokenizer_or_extractor_is_refused():
    model = tiny_canary()
    words = CanaryWords()
    words._tokens = Tokens(tuple(p.replace("<|noitn|>", "<|itn|>") for p in words.tokens.pieces), sos=44, eos=42)
    with pytest.raises(CheckpointError, match=r"it has no <\|noitn\|>"):
        Canary(model.model, words)
    with pytest.raises(CheckpointError, match="16 mel bands"):
        Canary(model.model, CanaryWords(), extractor=NemoMel(NemoMelConfig(feature_size=80)))


def test_special_units_are_not_written(model, speech):
    rows, _ = model.start(model.encode(*speech))
    never = {p for p, row in zip(model.tokens.pieces, rows[0].tolist(), strict=True) if row == -float("inf")}
    assert {"<unk>", "<|en|>", "<|startoftranscript|>"} <= never and "<|endoftext|>" not in never and "w3" not in never


def test_coheres_features_are_upstreams():
    from tests.adapters.frame_models import upstream_extractor

    audio = waves(2)
    theirs = upstream_extractor("cohere_asr").CohereAsrFeatureExtractor(feature_size=16)(
        audio, sampling_rate=16_000, return_tensors="pt"
    )
    found, lengths = tiny_cohere_asr().features(audio)
    assert lengths.tolist() == theirs["attention_mask"].sum(1).tolist()
    torch.testing.assert_close(found, theirs["input_features"][:, : found.shape[1]], rtol=0, atol=2e-4)


def test_noise_depends_on_the_length_alone():
    a, b = np.zeros(500, np.float32), np.ones(500, np.float32)
    np.testing.assert_allclose(dithered(a) - a, dithered(b) - b, atol=1e-6)
    assert 0 < np.abs(dithered(a)).max() < 1e-4
    assert not np.array_equal(dithered(a)[:400], dithered(a[:400]))
