"""Noise-contrastive estimation of a language model (Mnih & Teh 2012): learn p(w|h) by telling data from noise.

A token w that follows history h comes from the data with prior 1 and from the noise q with prior k:

    P(data | w, h) = p(w|h) / (p(w|h) + k q(w)),   p(w|h) = exp(s(w, h) − c)
    loss = −log P(data | w, h) − Σ_{j=1..k} log (1 − P(data | w_j, h)),   w_j ~ q

The normaliser c is fixed, not computed: the trained model normalises itself, and one token costs k + 1 scores in place
of V. The k noise tokens are drawn once a batch and serve all of its histories, which turns their scores into one matrix
product. A fresh output layer begins at p = q (`begin_from`): from p = 1/V its biases have to find the unigram first,
through a loss that sees rare tokens seldom.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError

__all__ = ["NoiseContrastive", "unigram_noise"]


def unigram_noise(counts: Tensor, power: float = 1.0, floor: float = 1.0) -> Tensor:
    """Noise probabilities q (V,) ∝ max(count, floor)^power: no token is impossible."""
    if counts.ndim != 1 or not len(counts) or float(counts.min()) < 0:
        raise BadInputError("unigram noise needs one count, zero or more, for each output unit")
    q = counts.double().clamp(min=floor).pow(power)
    return q / q.sum()


class NoiseContrastive(nn.Module):
    """The loss above for an output layer (weight, bias).

    Args:
        noise: q, probabilities of the output units (V,).
        samples: k, noise tokens a batch.
        normaliser: c, the fixed log-normaliser. None: ln V, which makes fresh weights near uniform probabilities.
    """

    log_noise: Tensor
    cumulative: Tensor

    def __init__(self, noise: Tensor, samples: int = 1024, normaliser: float | None = None) -> None:
        super().__init__()
        if samples < 1:
            raise BadInputError(f"samples must be at least 1, got {samples}")
        if noise.ndim != 1 or not math.isclose(float(noise.sum()), 1.0, rel_tol=1e-3) or float(noise.min()) <= 0:
            raise BadInputError("noise must be positive probabilities (V,) that sum to 1; see unigram_noise")
        self.samples = samples
        self.normaliser = math.log(len(noise)) if normaliser is None else normaliser
        self.register_buffer("log_noise", noise.double().log().float(), persistent=False)
        self.register_buffer("cumulative", noise.double().cumsum(0), persistent=False)

    @torch.no_grad()
    def begin_from(self, bias: Tensor) -> None:
        """Sets the bias (V,) of a fresh output layer so that p(w|h) begins near q(w), whatever h."""
        bias.copy_(self.log_noise + self.normaliser)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """k tokens from q, (k,), by inverting its distribution function."""
        u = torch.rand(self.samples, device=self.cumulative.device, dtype=torch.float64, generator=generator)
        return torch.searchsorted(self.cumulative, u).clamp_(max=len(self.cumulative) - 1)

    def forward(
        self,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Summed loss of n tokens: histories h (n, D), output layer (V, D) and (V,), targets (n,)."""
        noise = self.draw(generator)
        log_k = math.log(self.samples)
        shift = self.log_noise + (log_k + self.normaliser)
        at_target = (h * weight[targets].to(h.dtype)).sum(-1, dtype=torch.float32) + (bias - shift)[targets]
        at_noise = torch.mm(h, weight[noise].t().to(h.dtype)).float() + (bias - shift)[noise]
        softplus = nn.functional.softplus
        return softplus(-at_target).sum() + softplus(at_noise).sum()
