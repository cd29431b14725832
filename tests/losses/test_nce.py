"""Noise-contrastive estimation recovers a distribution that is known, and its own normaliser."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError
from ilme.losses.nce import NoiseContrastive, unigram_noise


def known_bigram(V: int, seed: int) -> torch.Tensor:
    """p(next | last), (V, V), far from uniform and far from its own unigram."""
    r = torch.Generator().manual_seed(seed)
    return torch.softmax(1.5 * torch.randn(V, V, generator=r), 1)


def test_recovers_a_known_bigram_and_normalises_itself() -> None:
    torch.manual_seed(0)
    V = 8
    p = known_bigram(V, seed=1)
    unigram = torch.linalg.matrix_power(p, 64)[0]  # stationary
    loss = NoiseContrastive(unigram_noise(unigram * 1e6), samples=64)
    histories = torch.eye(V)
    weight, bias = torch.zeros(V, V, requires_grad=True), torch.zeros(V, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 400)
    for _ in range(400):
        last = torch.multinomial(unigram, 1024, replacement=True)
        following = torch.multinomial(p[last], 1).squeeze(1)
        optimiser.zero_grad()
        (loss(histories[last], weight, bias, following) / 1024).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        scores = histories @ weight.T + bias - loss.normaliser
    divergence = (p * (p.log() - scores.log_softmax(1))).sum(1)
    assert float((unigram * divergence).sum()) < 0.01  # nats; the unigram itself is at about 0.5
    assert float((unigram * scores.logsumexp(1).abs()).sum()) < 0.05  # log Z = 0: it need not be computed
    assert float((unigram * (p * (p / unigram).log()).sum(1)).sum()) > 0.3


def test_gradient_is_that_of_the_classifier() -> None:
    torch.manual_seed(0)
    V, n, D = 5, 6, 3
    q = unigram_noise(torch.tensor([5.0, 1.0, 0.0, 3.0, 2.0]))
    loss = NoiseContrastive(q, samples=4, normaliser=0.7)
    h, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((n, D), (V, D), (V,)))
    targets = torch.randint(0, V, (n,))
    found = loss(h, weight, bias, targets, torch.Generator().manual_seed(3))
    noise = loss.draw(torch.Generator().manual_seed(3))
    p = torch.exp(h @ weight.T + bias - 0.7)
    data = p / (p + 4 * q.float())
    wanted = -data[torch.arange(n), targets].log().sum() - (1 - data[:, noise]).log().sum()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, [h, weight, bias]), torch.autograd.grad(wanted, [h, weight, bias])
    )


def test_noise_follows_its_distribution() -> None:
    q = unigram_noise(torch.tensor([6.0, 0.0, 3.0]), floor=1.0)
    assert q.tolist() == pytest.approx([0.6, 0.1, 0.3])
    loss = NoiseContrastive(q, samples=20_000)
    drawn = torch.bincount(loss.draw(torch.Generator().manual_seed(0)), minlength=3) / 20_000
    torch.testing.assert_close(drawn.double(), q, atol=0.01, rtol=0)


def test_impossible_noise_is_refused() -> None:
    with pytest.raises(BadInputError, match="positive probabilities"):
        NoiseContrastive(torch.tensor([0.5, 0.5, 0.0]))
    with pytest.raises(BadInputError, match="samples must be at least 1"):
        NoiseContrastive(torch.tensor([0.5, 0.5]), samples=0)


def test_a_fresh_output_layer_begins_at_the_noise_whatever_the_history() -> None:
    torch.manual_seed(0)
    q = unigram_noise(torch.tensor([500.0, 40.0, 3.0, 0.0]))
    loss = NoiseContrastive(q, samples=16)
    weight, bias = 1e-3 * torch.randn(4, 5), torch.randn(4)
    loss.begin_from(bias)
    h = torch.randn(3, 5)
    scores = h @ weight.T + bias - loss.normaliser
    torch.testing.assert_close(scores.exp().double(), q.expand(3, -1), atol=0.0, rtol=0.02)
