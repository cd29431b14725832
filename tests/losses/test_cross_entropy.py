"""The tiled cross-entropy against PyTorch's own on stored logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ilme.errors import BadInputError
from ilme.losses.cross_entropy import linear_cross_entropy


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 30),
    V=st.integers(2, 9),
    tile=st.integers(1, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_equals_pytorch_on_stored_logits(n: int, V: int, tile: int, smoothing: float) -> None:
    r = torch.Generator().manual_seed(n)
    h, weight, bias = (
        torch.randn(*s, generator=r, dtype=torch.float64).requires_grad_() for s in ((n, 4), (V, 4), (V,))
    )
    targets = torch.randint(0, V, (n,), generator=r)
    found = linear_cross_entropy(h, weight, bias, targets, smoothing, tile=tile)
    wanted = F.cross_entropy(h @ weight.T + bias, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found, wanted)
    leaves = [h, weight, bias]
    torch.testing.assert_close(torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * wanted, leaves))


def test_tokens_that_do_not_count_are_left_out() -> None:
    h, weight, bias = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4), torch.randn(7)
    targets, keep = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([True, False, True, False, False])
    found = linear_cross_entropy(h, weight, bias, targets, keep=keep)
    wanted = F.cross_entropy((h @ weight.T + bias)[keep], targets[keep], reduction="sum")
    torch.testing.assert_close(found, wanted)
    assert not torch.autograd.grad(found, h)[0][~keep].any()


def test_autocast_keeps_float32_sums() -> None:
    h, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((64, 16), (40, 16), (40,)))
    targets = torch.randint(0, 40, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(h, weight, bias, targets)
    exact = linear_cross_entropy(h, weight, bias, targets)
    assert found.dtype == torch.float32 and not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)
    assert torch.autograd.grad(found, weight)[0].dtype == torch.float32


def test_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(BadInputError, match="label smoothing"):
        linear_cross_entropy(torch.randn(2, 3), torch.randn(4, 3), torch.randn(4), torch.tensor([0, 1]), 1.0)
