"""Work side by side: the same results and gradients as one after the other, on every device there is."""

from __future__ import annotations

import pytest
import torch

from ilme.streams import side_by_side

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
def test_both_results_and_their_gradients(device: str) -> None:
    torch.manual_seed(0)
    x, a, b = (torch.randn(256, 256, dtype=torch.float64, device=device) / 16 for _ in range(3))
    found, plain = ([t.clone().requires_grad_() for t in (x, a, b)] for _ in range(2))

    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = torch.tanh(x @ w)
        return x

    for _ in range(3):  # memory of the first round is used again in the next
        y, z = side_by_side(lambda: chain(found[0], found[1]), lambda: chain(found[0] * 2, found[2]), (found[0],))
        (y * z.cos()).sum().backward()
        (chain(plain[0], plain[1]) * chain(plain[0] * 2, plain[2]).cos()).sum().backward()
        del y, z
    for mine, theirs in zip(found, plain, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad)
