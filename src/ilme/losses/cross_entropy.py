"""Cross-entropy of an output layer, without storing the logits of all tokens.

    loss = Σ_i (1 − s) (−log p_i[y_i]) + s (−1/V Σ_v log p_i[v]),   p_i = softmax(W h_i + b)

with label smoothing s. The gradient of a tile of tokens is made while its logits are there, so the backward
pass only scales what is ready: the logits are computed once and never kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.runtime.cuda import kernels_run_on

__all__ = ["linear_cross_entropy", "with_ends"]

TILE_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 26}  # logits of a tile: 2 MiB of float32; 128 MiB of 16 bits


def with_ends(labels: Tensor, lengths: Tensor, eos: int) -> tuple[Tensor, Tensor]:
    """y_1 … y_U <eos> (B, U+1) of padded labels (B, U) and their lengths (B,), and which of them count, (B, U+1)."""
    steps = torch.arange(labels.shape[1] + 1, device=labels.device)
    targets = torch.nn.functional.pad(labels, (0, 1)).masked_fill(steps == lengths[:, None], eos)
    return targets, steps <= lengths[:, None]


def linear_cross_entropy(
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    smoothing: float = 0.0,
    keep: Tensor | None = None,
    *,
    tile: int | None = None,
) -> Tensor:
    """The summed loss of n tokens, a scalar in float32 (float64 for float64 input).

    Args:
        h: Vectors before the output layer (n, D).
        weight: Output layer (V, D).
        bias: Its bias (V,).
        targets: Ids (n,).
        smoothing: Probability s that is spread over all outputs.
        keep: Which tokens count (n,), bool; all when None.
        tile: Tokens per tile; None: what suits the device.
    """
    if not 0.0 <= smoothing < 1.0:
        raise BadInputError(f"label smoothing must be at least 0 and less than 1, got {smoothing}")
    if h.ndim != 2 or targets.shape != h.shape[:1]:
        raise BadInputError(f"h (n, D) and targets (n,) do not match: {tuple(h.shape)}, {tuple(targets.shape)}")
    if keep is not None:
        h, targets = h[keep], targets[keep]
    if tile is None:
        tile = max(64, TILE_NUMBERS.get(h.device.type, 1 << 22) // len(weight))
    dtype = torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype
    needed = (h.requires_grad, weight.requires_grad, bias.requires_grad)
    if not (torch.is_grad_enabled() and any(needed)):
        needed = (False, False, False)
    total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        h, weight, bias, targets, smoothing, tile, dtype, needed
    )
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        smoothing: float,
        tile: int,
        dtype: torch.dtype,
        needed: tuple[bool, bool, bool],
    ) -> Tensor:
        exact = torch.float64 if h.dtype == torch.float64 else torch.float32
        total = torch.zeros((), dtype=exact, device=h.device)
        grads = [
            torch.zeros(x.shape, dtype=exact, device=x.device) if want else None
            for x, want in zip((h, weight, bias), needed, strict=True)
        ]
        with torch.autocast(h.device.type, enabled=False):
            w, b = weight.to(dtype), bias.to(dtype)
            for low in range(0, len(h), tile):
                part = slice(low, low + tile)
                total += _tile(h[part].to(dtype), w, b, targets[part], smoothing, exact, grads, part)
        ctx.save_for_backward(*(g for g in grads if g is not None))
        ctx.needed, ctx.dtypes = needed, (h.dtype, weight.dtype, bias.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = grads
        ready = iter(ctx.saved_tensors)
        out = [
            (next(ready) * scale).to(dtype) if want else None
            for want, dtype in zip(ctx.needed, ctx.dtypes, strict=True)
        ]
        return (*out, None, None, None, None, None)


def _tile(
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    smoothing: float,
    exact: torch.dtype,
    grads: list[Tensor | None],
    part: slice,
) -> Tensor:
    """The loss of one tile; adds its gradients ∂loss/∂z = p − (1 − s) 1_y − s/V to `grads`."""
    z = torch.addmm(bias, h, weight.t())
    dh, dw, db = grads
    wanted = dh is not None or dw is not None or db is not None
    if exact == torch.float32 and kernels_run_on(z.device):
        loss, dz = _fused(z, targets, smoothing, wanted)
    else:
        loss, dz = _plain(z.to(exact), targets, smoothing, wanted)
    if db is not None:
        db += dz.sum(0, dtype=exact)
    dz = dz.to(weight.dtype)
    if dh is not None:
        dh[part] = torch.mm(dz, weight)
    if dw is not None:
        if dw.dtype == dz.dtype:
            dw.addmm_(dz.t(), h)
        elif dz.is_cuda:
            dw += torch.mm(dz.t(), h, out_dtype=dw.dtype)
        else:
            dw += torch.mm(dz.t(), h)
    return loss


def _plain(z: Tensor, targets: Tensor, smoothing: float, wanted: bool) -> tuple[Tensor, Tensor]:
    """Loss, and gradient of the logits (n, V) if it is wanted, in tensor operations."""
    V = z.shape[1]
    lse = z.logsumexp(1)
    loss = (lse - (1 - smoothing) * z.gather(1, targets[:, None]).squeeze(1)).sum()
    if smoothing:
        loss -= smoothing * z.sum() / V
    if not wanted:
        return loss, z
    dz = z.sub_(lse[:, None]).exp_()
    if smoothing:
        dz -= smoothing / V
    dz.scatter_add_(1, targets[:, None], dz.new_full((len(dz), 1), smoothing - 1.0))
    return loss, dz


def _fused(z: Tensor, targets: Tensor, smoothing: float, wanted: bool) -> tuple[Tensor, Tensor]:
    """The same by one kernel that reads the logits twice and writes the gradient over them."""
    from ilme.losses.cross_entropy_kernels import loss_and_gradient_kernel

    n, V = z.shape
    losses = torch.empty(n, device=z.device)
    block = min(4096, 1 << (V - 1).bit_length())
    loss_and_gradient_kernel[(n,)](
        z, targets, losses, V, smoothing, GRADIENT=wanted, BLOCK=block, num_warps=8 if block > 1024 else 4
    )
    return losses.sum(), z
