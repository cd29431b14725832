"""The internal LMs of a transducer: which there are, and what becomes of their tensors."""

from __future__ import annotations

import types

import pytest
import torch

from ilme.errors import CheckpointError
from ilme.ilm import internal_lm
from ilme.ilm.calibration import Calibration
from ilme.ilm.transducer import TransducerInternalLM, estimators, restored
from tests.models.test_networks import network


@pytest.fixture
def model():
    return network("rnnt")


def test_each_transducer_has_the_ways_that_it_can_do(model):
    """Silence needs a model that takes waveforms, learning one whose weights are open."""
    assert list(estimators(model)) == ["removed", "silence", "mean-encoder", "learned"]
    assert {name: how.needs for name, how in estimators(model).items()} == {
        "removed": "nothing", "silence": "nothing", "mean-encoder": "speech", "learned": "transcripts",
    }  # fmt: skip
    foreign = types.SimpleNamespace(tokens=model.tokens)
    assert list(estimators(foreign)) == ["removed", "mean-encoder"]


@torch.no_grad()
def test_a_vector_and_a_scale_come_back_as_they_were(model):
    width = model.start(1)[0].shape[1]
    made = TransducerInternalLM(model, torch.linspace(-1, 1, width).double(), 1.5, "learned")
    again = restored(model, "learned", made.tensors, 1.5)
    assert again.how == "learned" and again.scale == 1.5
    assert torch.equal(again.start(1)[0], made.start(1)[0])
    assert not torch.allclose(restored(model, "learned", made.tensors, 1.0).start(1)[0][:, 1:], made.start(1)[0][:, 1:])
    plain = restored(model, "removed", {}, 1.0)
    assert plain.vector is None and torch.equal(plain.start(2)[0], internal_lm(model, "removed").start(2)[0])


@pytest.mark.parametrize("off", [-1, 1])
def test_a_vector_of_another_width_is_refused(model, off):
    width = model.start(1)[0].shape[1]
    with pytest.raises(
        CheckpointError, match=rf"vector of \({width + off},\) in place of acoustic terms of \({width},\)"
    ):
        restored(model, "mean-encoder", {"vector": torch.zeros(width + off)}, 1.0)


@torch.no_grad()
def test_the_internal_lm_of_hat_is_its_labels_softmax_without_the_acoustic_term():
    """Computed from the weights in float64; what the sigmoid says of blank has no part in it."""
    model = network("rnnt", hat=True)
    labels = [3, 7, 2]
    rows, state = TransducerInternalLM(model).start(1)
    for u in range(len(labels) + 1):
        g = model.predict_all(torch.tensor([labels[:u]], dtype=torch.long))[0, -1]
        z = model.output.weight @ torch.tanh(g) + model.output.bias
        wanted = z[1:].exp() / z[1:].exp().sum()  # blank is id 0
        torch.testing.assert_close(rows[0, 1:].exp(), wanted, rtol=1e-12, atol=0)
        model.output.bias[0] += 1.0
        if u < len(labels):
            rows, state = TransducerInternalLM(model).score(torch.tensor([labels[u]]), state)


@torch.no_grad()
def test_silence_is_the_mean_over_the_frames_of_silence_alone(model):
    """Three seconds of zeros, encoded; frames past the length that the encoder gives are none of them."""
    heard = []

    class Host:
        rate, device, tokens = 100, torch.device("cpu"), model.tokens
        start, predict, join = model.start, model.predict, model.join

        def features(self, waves):
            heard.extend(waves)
            return torch.zeros(1, 7, 3), torch.tensor([7])

        def encode(self, features, lengths):
            width = model.start(1)[0].shape[1]
            f = torch.arange(7.0)[:, None].expand(7, width)
            return torch.stack([f, 100 + f]), torch.tensor([4, 6])

    made = estimators(Host())["silence"].make(Host(), Calibration())
    assert made.how == "silence" and torch.equal(made.vector, torch.full_like(made.vector, (0 + 1 + 2 + 3) / 4))
    assert len(heard) == 1 and heard[0].shape == (300,) and not heard[0].any()
