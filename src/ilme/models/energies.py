"""Location-aware additive attention, whose energies are what an attention decoder's steps wait for.

    energy(b, t) = Σ_a v_a tanh( K(b, t, a) + q(b, a) + Σ_f W_f(a, f) M(b, t, f) )          (Eq. 5)
    a(b, t) = softmax_t energy(b, t),    c(b) = Σ_t a(b, t) h_enc(b, t)                      (Eq. 6)

K are the projected encoder outputs, q the projected decoder state, M the convolved attention weights of the step
before. The loss and the network's own steps both come here. Written plainly, each label of the transcript stores two
tensors of the size of K for the backward pass. On a CUDA device one kernel reads K, stores nothing of its size, and
makes the tanh again in the backward pass. In a search several sequences attend to each utterance, and the same kernel
serves them all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ilme.runtime.cuda import kernels_run_on

__all__ = ["attention_energies", "location_energies", "weights_and_context"]

FRAMES, UNITS, WARPS = 32, 64, 4


def attention_energies(
    keys: Tensor,
    query: Tensor,
    previous: Tensor,
    filters: Tensor | None,
    location: Tensor | None,
    v: Tensor,
    *,
    fused: bool | None = None,
) -> Tensor:
    """Energies (n, T), in float32 at least.

    Args:
        keys: K (B, T, A).
        query: q (n, A).
        previous: Attention weights of the step before (n, T).
        filters: What they are convolved with (F, 1, width), for M; None: the attention does not see where it was.
        location: W_f (A, F).
        v: (A,).
        fused: As for `location_energies`.
    """
    if filters is None or location is None:
        return _summed(_asked(keys, query), v)
    around = filters.shape[2] // 2
    moved = functional.conv1d(previous[:, None].to(keys.dtype), filters, padding=around).transpose(1, 2)
    return location_energies(keys, query, moved, location, v, fused=fused)


def weights_and_context(energy: Tensor, padding: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights (n, T) and contexts (n, E) from energies (n, T), padding (B, T) and values (B, T, E)."""
    weights = (energy.view(len(values), -1, energy.shape[1]) + padding[:, None]).softmax(-1)  # (B, n / B, T)
    return weights.view_as(energy), (weights.to(values.dtype) @ values).view(len(energy), -1)


def location_energies(
    keys: Tensor, query: Tensor, moved: Tensor, location: Tensor, v: Tensor, *, fused: bool | None = None
) -> Tensor:
    """Energies (n, T), in float32 at least.

    Args:
        keys: K (B, T, A).
        query: q (n, A), for n / B sequences of each utterance, standing together; in training one.
        moved: M (n, T, F).
        location: W_f (A, F).
        v: (A,).
        fused: Whether to run the kernels; None: wherever they can run.
    """
    if kernels_run_on(keys.device) if fused is None else fused:
        if torch.is_autocast_enabled(keys.device.type):
            dtype = torch.get_autocast_dtype(keys.device.type)
            keys, query, moved, location = (x.to(dtype) for x in (keys, query, moved, location))
        energies: Tensor = _FusedEnergies.apply(keys, query, moved, location, v)  # type: ignore[no-untyped-call]
        return energies
    asked = _asked(keys, query)
    return _summed(asked + functional.linear(moved, location).view_as(asked), v)


def _asked(keys: Tensor, query: Tensor) -> Tensor:
    """K + q (B, n / B, T, A)."""
    return keys[:, None] + query.view(len(keys), -1, 1, keys.shape[2])


def _summed(z: Tensor, v: Tensor) -> Tensor:
    """vᵀ tanh(z) (n, T) of z (B, n / B, T, A)."""
    return functional.linear(torch.tanh(z), v[None]).view(-1, z.shape[2]).to(_exact(z))


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


class _FusedEnergies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, query: Tensor, moved: Tensor, location: Tensor, v: Tensor) -> Tensor:
        from ilme.models import energy_kernels as kernels

        keys, query, moved, location = (x.contiguous() for x in (keys, query, moved, location))
        (B, T, A), n = keys.shape, len(query)
        out = torch.empty(n, T, device=keys.device, dtype=_exact(keys))
        grid = (n, -(-T // FRAMES))
        kernels.energy_kernel[grid](keys, query, moved, location, v, out, n // B, T, A, moved.shape[2], **_shape(moved))
        ctx.save_for_backward(keys, query, moved, location, v)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        from ilme.models import energy_kernels as kernels

        keys, query, moved, location, v = ctx.saved_tensors
        (B, T, A), F = keys.shape, moved.shape[2]
        blocks = -(-T // FRAMES)
        dz = torch.empty_like(keys)
        dquery, dv = (torch.empty(B, blocks, A, device=keys.device, dtype=_exact(keys)) for _ in range(2))
        kernels.energy_gradient_kernel[(B, blocks)](
            keys, query, moved, location, v, grads[0].contiguous(), dz, dquery, dv, T, A, F, blocks,
            **_shape(moved),
        )  # fmt: skip
        flat = dz.view(-1, A)
        dmoved, dlocation = torch.mm(flat, location).view_as(moved), torch.mm(flat.t(), moved.view(-1, F))
        return dz, dquery.sum(1).to(query.dtype), dmoved, dlocation, dv.sum((0, 1)).to(v.dtype)


def _shape(moved: Tensor) -> dict[str, Any]:
    filters = max(16, 1 << (moved.shape[2] - 1).bit_length())
    return {"FILTERS": filters, "EXACT": moved.dtype == torch.float32, "FRAMES": FRAMES, "UNITS": UNITS,
            "num_warps": WARPS}  # fmt: skip
