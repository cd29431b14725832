"""Internal LMs against the paper's equations, written out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from ilme.ilm import Calibration, check, internal_lm
from ilme.ilm.check import AudioDependenceError, check_audio_independent
from ilme.lm.perplexity import perplexity, sample
from tests.models.test_networks import network


@torch.no_grad()
def test_the_transducers_is_eqs_24_to_26():
    model = network("rnnt")
    scorer = internal_lm(model)
    labels = [3, 7, 2]
    g = model.predict_all(torch.tensor([labels]))[0]
    z = g.tanh() @ model.output.weight.T + model.output.bias  # J(g): neither f_t nor its bias b_e
    expected = torch.cat([torch.full((4, 1), -torch.inf), z[:, 1:].log_softmax(-1)], 1)
    rows, state = scorer.start(1)
    for u in range(4):
        assert torch.allclose(rows[0], expected[u], atol=1e-12)
        assert rows[0, 0] == -torch.inf and rows[0, 1:].exp().sum().item() == pytest.approx(1)
        if u < 3:
            rows, state = scorer.score(torch.tensor([labels[u]]), state)
    assert scorer.finish(rows).item() == 0.0


@torch.no_grad()
def test_the_decoders_is_eqs_31_and_32_with_a_state_of_its_own():
    model = network("aed")
    scorer = internal_lm(model)
    labels = [3, 7, 2]
    e = model.embedding(torch.tensor([[model.sos, *labels]]))
    expected = model.output(model.rnn(e))[0].log_softmax(-1)  # DecoderRNN on embeddings alone, from its zero state
    rows, state = scorer.start(1)
    for u in range(4):
        assert torch.allclose(rows[0], expected[u], atol=1e-12)
        if u < 3:
            rows, state = scorer.score(torch.tensor([labels[u]]), state)
    assert scorer.finish(rows).item() == pytest.approx(expected[3, 0].item())


@torch.no_grad()
def test_average_is_the_mean_over_frames_and_over_labels():
    rnnt = network("rnnt")
    x, lengths = torch.randn(2, 8, 240).double(), torch.tensor([8, 5])
    f, _ = rnnt.encode(x, lengths)
    averaged = internal_lm(rnnt, "mean-encoder", calibration=Calibration([f[0], f[1, :5]], [[3], [4]]))
    mean = averaged.tensors["vector"]
    assert torch.allclose(mean, torch.cat([f[0], f[1, :5]]).mean(0))
    rows, _ = averaged.start(1)
    g, _ = rnnt.start(1)
    assert torch.allclose(rows[0, 1:], rnnt.join(mean[None], g)[0, 1:].log_softmax(-1))

    aed = network("aed")
    labels = torch.tensor([[3, 4, 5], [6, 0, 0]])
    memories = [aed.encode(x[b : b + 1, : lengths[b]], lengths[b : b + 1]) for b in range(2)]
    told = Calibration(memories, [[3, 4, 5], [6]])
    context = internal_lm(aed, "mean-context", calibration=told).tensors["vector"]
    contexts = []
    for b, length in enumerate([3, 1]):
        memory = aed.encode(x[b : b + 1, : lengths[b]], lengths[b : b + 1])
        _, state = aed.start(memory)
        first = aed.attend(memory[2].softmax(-1), memory, torch.zeros(1, 64).double())[1]
        contexts.append(first)
        for label in labels[b, :length]:
            contexts.append(state[2])
            _, state = aed.step(label[None], state, memory)
    assert torch.allclose(context, torch.cat(contexts).mean(0), atol=1e-9)


class Leaky:
    """An internal LM that still hears: it adds a trace of what its host last encoded."""

    def __init__(self, scorer, host, trace=1.0):
        self.scorer, self.tokens, self.device, self.heard = scorer, scorer.tokens, scorer.device, 0.0
        encode = host.encode

        def listening(features, lengths):
            self.heard = trace * features.sum().item()
            return encode(features, lengths)

        host.encode = listening

    def start(self, n):
        rows, state = self.scorer.start(n)
        return rows + self.heard, state

    def score(self, labels, state):
        return self.scorer.score(labels, state)


@pytest.mark.parametrize("trace", [1.0, 1e-5])
def test_an_internal_lm_that_hears_is_caught(trace):
    model = network("rnnt")
    with pytest.raises(AudioDependenceError, match="depend on the labels alone"):
        check_audio_independent(Leaky(internal_lm(model), model, trace), model)


def test_a_shared_step_may_be_off_by_the_rounding_of_its_products_alone():
    """TF32 on a GPU keeps ten bits of a factor; a decoder of the paper's size was off by 0.0023 there."""
    gpu, cpu = (SimpleNamespace(device=torch.device(name)) for name in ("cuda", "cpu"))
    before = torch.get_float32_matmul_precision()
    try:
        for precision, expected in (("highest", 1e-3), ("high", 2e-2)):
            torch.set_float32_matmul_precision(precision)
            assert check.rounding(cpu) == 1e-3 and check.rounding(gpu) == expected
    finally:
        torch.set_float32_matmul_precision(before)


class Words:
    """Writes each token as a word."""

    def encode(self, text):
        return [int(word) for word in text.split()]


@pytest.mark.parametrize("kind", ["rnnt", "aed", "lm"])
def test_perplexity_is_the_formula_and_samples_are_labels(kind):
    model = network(kind)
    scorer = model if kind == "lm" else internal_lm(model)
    texts = ["3 4 5", "", "2 2", "9"]
    result = perplexity(scorer, texts, Words(), batch=2)
    from tests.oracle import score_sequence

    ends = kind != "rnnt"
    total = sum(score_sequence(scorer, tuple(map(int, t.split())), ends) for t in texts if t)
    assert result.sentences == 3 and result.words == 6 and result.tokens == 6 + 3 * ends
    assert result.log_probability == pytest.approx(total)
    assert result.per_token == pytest.approx(math.exp(-total / result.tokens))
    drawn = sample(scorer, 5, 8, seed=1)
    assert drawn == sample(scorer, 5, 8, seed=1) != sample(scorer, 5, 8, seed=2)
    assert all(1 <= label < 11 for labels in drawn for label in labels) and any(drawn)


def test_a_samples_frequencies_follow_the_scores():
    scorer = network("lm")
    rows, _ = scorer.start(1)
    first = torch.tensor([labels[0] if labels else 0 for labels in sample(scorer, 4000, 1, seed=3)])
    frequencies = torch.bincount(first, minlength=11) / 4000
    assert torch.allclose(frequencies.double(), rows[0].exp(), atol=0.03)
