"""Qwen3-ASR with tiny random weights: equal to `transformers`, every contract, and its internal LMs."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "Qwen3ASRForConditionalGeneration"):
    pytest.skip("this transformers has no Qwen3-ASR", allow_module_level=True)

from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer  # noqa: E402
from ilme.adapters.qwen3_asr import Qwen3ASR, Qwen3ASROptions, conversation  # noqa: E402
from ilme.errors import BadInputError, CheckpointError  # noqa: E402
from ilme.ilm import Calibration, internal_lm  # noqa: E402
from ilme.ilm.files import load_internal_lm, save_internal_lm  # noqa: E402
from ilme.ilm.learned_context import loss_per_label  # noqa: E402
from ilme.testing.contract import attention_rows, check_attention_model, check_internal_lm  # noqa: E402
from tests.adapters import attention_folders  # noqa: E402
from tests.adapters.tiny import tiny_qwen3_asr, waves  # noqa: E402

LABELS = [5, 9, 12, 5, 30]


@pytest.fixture(scope="module")
def model() -> Qwen3ASR:
    return tiny_qwen3_asr()


@pytest.fixture(scope="module")
def speech(model: Qwen3ASR) -> tuple[torch.Tensor, torch.Tensor]:
    return model.features(waves(2, seconds=0.9))


def prompt_of(model: Qwen3ASR, frames: int) -> list[int]:
    return [*model._head, *[model.model.config.audio_token_id] * frames, *model._tail]


def test_logits_equal_transformers(model, speech):
    """The whole conversation through upstream's own forward pass, each utterance alone."""
    features, lengths = speech
    ours = attention_rows(model, model.encode(features, lengths), [LABELS, LABELS])
    _, mask = model.hidden(features, lengths)
    assert mask is not None, "utterances of different lengths, or padding is not tested"
    for b in range(2):
        ids = prompt_of(model, int(mask[b].sum()))
        heard = (torch.arange(features.shape[-1]) < lengths[b])[None].long()
        with torch.no_grad():
            out = model.model(
                input_ids=torch.tensor([[*ids, *LABELS]]),
                input_features=features[b : b + 1],
                input_features_mask=heard,
            )
        expected = (out.logits[0, len(ids) - 1 :] + model.allowed).log_softmax(-1)
        torch.testing.assert_close(ours[b], expected, atol=1e-4, rtol=0)


def test_contract(model, speech):
    check_attention_model(model, *speech, LABELS)


@pytest.mark.parametrize("name", ["zeroed", "silence", "mean-encoder", "learned"])
def test_internal_lm_contract(model, speech, name, tmp_path):
    hidden, mask = model.hidden(*speech)
    states = [h[m] for h, m in zip(hidden, mask, strict=True)]
    scorer = internal_lm(model, name, calibration=Calibration(states, [[5, 6, 7], [9, 8, 7, 6]]))
    check_internal_lm(scorer, model, *speech, LABELS)
    save_internal_lm(tmp_path / "internal.safetensors", scorer)
    again = load_internal_lm(tmp_path / "internal.safetensors", model)
    torch.testing.assert_close(again.start(1)[0], scorer.start(1)[0])


def test_without_audio_nothing_stands_between_head_and_tail(model):
    rows, _ = model.start(model.without_audio())
    with torch.no_grad():
        out = model.model(input_ids=torch.tensor([prompt_of(model, 0)])).logits[:, -1]
    torch.testing.assert_close(rows, (out + model.allowed).log_softmax(-1), atol=1e-4, rtol=0)


def test_learned_states_predict_transcripts_better(model, speech):
    hidden, mask = model.hidden(*speech)
    states = [h[m] for h, m in zip(hidden, mask, strict=True)]
    transcripts = [[5, 6, 7, 8]] * 20 + [[9, 8, 7]] * 20
    before = {name: p.clone() for name, p in model.model.named_parameters()}
    learned = internal_lm(model, "learned", calibration=Calibration([], transcripts)).tensors["hidden"]
    mean = torch.cat(states).mean(0, keepdim=True)
    assert loss_per_label(model, lambda: learned, transcripts) < 0.8 * loss_per_label(model, lambda: mean, transcripts)
    assert all(torch.equal(p, before[name]) for name, p in model.model.named_parameters())


def test_special_units_are_not_written(model, speech):
    rows, _ = model.start(model.encode(*speech))
    names = [p for p, row in zip(model.tokens.pieces, rows[0].tolist(), strict=True) if row == -float("inf")]
    assert "<|im_start|>" in names and "<asr_text>" in names and "<|im_end|>" not in names


def test_what_the_model_is_told():
    talk = conversation(Qwen3ASROptions(language="de", prompt="Fischer, Dübel"))
    assert [turn["role"] for turn in talk] == ["system", "user", "assistant"]
    assert talk[0]["content"][0]["text"] == "Fischer, Dübel"
    assert talk[2]["content"][0]["text"] == "language German<asr_text>"
    assert len(conversation(Qwen3ASROptions())) == 2
    with pytest.raises(BadInputError, match="language is one of"):
        Qwen3ASROptions(language="xx")
    told = tiny_qwen3_asr(Qwen3ASROptions(prompt="w3 w4"))
    plain = tiny_qwen3_asr()
    assert len(told._head) == len(plain._head) + 2


def test_a_template_without_audio_is_refused(model):
    with pytest.raises(CheckpointError, match="0 times, not once"):
        Qwen3ASR(model.model, model.tokenizer, lambda talk: "w1 w2")


def test_a_folder_without_chat_template_is_refused(tmp_path):
    from ilme.recogniser.loading import load_model

    attention_folders.qwen3_asr(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded.tokenizer, HuggingFaceTokenizer) and loaded.kind == "qwen3_asr"
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template"):
        load_model(tmp_path)
