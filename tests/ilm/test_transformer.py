"""The internal LMs of a Transformer decoder, against averages and masks that are known."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from ilme.adapters.decoder import CrossAttention, Vectors
from ilme.adapters.hf import attention
from ilme.errors import CheckpointError
from ilme.ilm import Calibration, internal_lm
from ilme.ilm.transformer import FLOOR, restored
from tests.adapters.tiny import tiny_speech2text, tiny_whisper, waves


@pytest.fixture(scope="module")
def model():
    return tiny_whisper()


@pytest.fixture(scope="module")
def hidden(model):
    return list(model.hidden(*model.features(waves(2)))[0])


class Recorded:
    """A cross-attention that keeps what it puts out."""

    def __init__(self, context):
        self.context, self.outputs = context, {}

    def __call__(self, index, layer, x):
        out = self.context(index, layer, x)
        self.outputs.setdefault(index, []).append(out[0])
        return out


def test_the_mean_context_is_the_mean_over_every_label_and_the_prefix(model, hidden):
    labels = [[5, 6, 7], [9, 8, 7, 6, 5]]
    scorer = internal_lm(model, "mean-context", calibration=Calibration(hidden, labels))
    everything = {index: [] for index in range(len(model.decoder.layers))}
    for states, y in zip(hidden, labels, strict=True):
        recorded = Recorded(attention(model.memory(states[None])))
        model.teacher_forced(torch.tensor([y]), recorded)
        for index, outputs in recorded.outputs.items():
            everything[index] += outputs
    for index, outputs in everything.items():
        rows = torch.cat(outputs)
        assert len(rows) == 2 * len(model.prefix) + 3 + 5
        torch.testing.assert_close(scorer.tensors["vectors"][index], rows.mean(0), atol=1e-5, rtol=1e-4)


def test_the_mean_of_a_constant_is_the_constant(model):
    """Where the encoder says nothing but zero, the mean context is what `zeroed` puts in its place."""
    silent = [torch.zeros(4, model.encoder_width), torch.zeros(9, model.encoder_width)]
    mean = internal_lm(model, "mean-context", calibration=Calibration(silent, [[5], [6, 7, 8]]))
    torch.testing.assert_close(mean.tensors["vectors"], internal_lm(model, "zeroed").tensors["vectors"])


def test_the_mean_encoder_is_the_mean_frame_by_frame_or_over_all_frames(model, hidden):
    calibration = Calibration(hidden, [[5], [6]])
    mean = internal_lm(model, "mean-encoder", calibration=calibration).tensors["hidden"]
    torch.testing.assert_close(mean, (hidden[0] + hidden[1]) / 2)
    free = tiny_speech2text()
    states = [torch.randn(3, free.encoder_width), torch.randn(5, free.encoder_width)]
    alone = internal_lm(free, "mean-encoder", calibration=Calibration(states, [[5], [6]]))
    one_frame = torch.cat(states).mean(0)[None, None]
    expected = [layer.cross_out(layer.cross_kv(one_frame).chunk(2, dim=-1)[1])[0, 0] for layer in free.decoder.layers]
    torch.testing.assert_close(alone.tensors["vectors"], torch.stack(expected))


def test_a_sequence_may_not_begin_with_what_the_model_does_not_begin_with(model):
    """The end is held back before the first label and possible after it, as in the model itself."""
    scorer = internal_lm(model, "removed")
    eos = model.tokens.eos
    rows, state = scorer.start(2)
    assert (rows[:, eos] < FLOOR / 2).all() and torch.isfinite(rows).all()
    rows, _ = scorer.score(torch.tensor([5, 6]), state)
    assert (rows[:, eos] > -100).all()
    torch.testing.assert_close(scorer.finish(rows), rows[:, eos])
    stamps = model.vocabulary.timestamps
    assert (rows[:, stamps] < FLOOR / 2).all(), "what the model never puts out is never likely"
    torch.testing.assert_close(rows.exp().sum(1), torch.ones(2))


def test_removed_adds_nothing(model):
    scorer = internal_lm(model, "removed")
    assert isinstance(scorer.context, Vectors) and not scorer.tensors["vectors"].any()
    assert scorer.tensors["vectors"].shape == (len(model.decoder.layers), model.decoder.width)


def test_tensors_of_another_model_are_refused(model):
    layers, width = len(model.decoder.layers), model.decoder.width
    for tensors in ({"vectors": torch.zeros(layers + 1, width)}, {"vector": torch.zeros(width + 1)}, {}):
        with pytest.raises(CheckpointError, match="belongs to another model"):
            restored(model, "mean-context", tensors, 1.0)
    with pytest.raises(CheckpointError, match=f"width {width + 1}, the model has {width}"):
        restored(model, "silence", {"hidden": torch.zeros(3, width + 1)}, 1.0)
    same = restored(model, "learned", {"vector": torch.ones(width)}, 1.0)
    assert torch.equal(same.tensors["vectors"], torch.ones(layers, width)), "one vector for every layer"


def test_in_8_bits_silence_counts_in_groups():
    """Where the states of a group are equal the rows are the same, and float32 takes every state again."""
    model = tiny_whisper()
    torch.manual_seed(0)
    hidden = torch.randn(6, model.encoder_width).repeat_interleave(8, 0)
    hidden = torch.cat([hidden, torch.randn(3, model.encoder_width)])
    scorer = restored(model, "silence", {"hidden": hidden}, 1.0)
    labels = torch.tensor([5, 6])
    before, _ = scorer.score(labels, scorer.start(2)[1])
    scorer.pack("int8")
    assert scorer.context.keys[0].shape[2] == 6 + 3
    torch.testing.assert_close(scorer.score(labels, scorer.start(2)[1])[0], before, atol=1e-4, rtol=1e-5)
    scorer.pack("float32")
    assert scorer.context.keys[0].shape[2] == len(hidden)
    torch.testing.assert_close(scorer.score(labels, scorer.start(2)[1])[0], before)


def test_attention_in_16_bits_is_nearly_that_in_32(model, hidden):
    keys, values = model.decoder.keys_and_values(torch.stack(hidden))
    counts = torch.zeros(2, keys[0].shape[2])
    counts[1, 3:] = -torch.inf
    x = torch.randn(6, 1, model.decoder.width)
    layer = model.decoder.layers[0]
    exact = CrossAttention(keys, values, counts)(0, layer, x)
    rounded = CrossAttention([k.bfloat16() for k in keys], [v.bfloat16() for v in values], counts)(0, layer, x)
    assert float((rounded - exact).norm() / exact.norm()) < 2e-2
