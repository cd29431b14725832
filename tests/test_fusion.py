"""The fused score is the formula, and a weight of 0 leaves its part out."""

from __future__ import annotations

import pytest
import torch

from ilme.fusion import FusionWeights, fuse


def test_fuse_is_the_formula():
    weights = FusionWeights(lm=0.3, subtracted=0.2, length=0.5)
    assert fuse(-2.0, -3.0, -5.0, 4.0, weights) == pytest.approx(-2 - 0.9 + 1.0 + 2.0)
    x = torch.randn(50)
    assert torch.equal(fuse(x, torch.full_like(x, torch.nan), torch.full_like(x, torch.nan), x, FusionWeights()), x)
