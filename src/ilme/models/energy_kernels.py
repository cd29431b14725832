"""Triton kernels of the location-aware additive attention. `ilme.models.energies` says what they compute.

One program owns one sequence's block of frames and walks over the attention dimension, so neither the sum
inside the tanh nor the tanh itself, both (B, T, A), is ever stored; the backward pass makes them again.

Sums are in the number format of what they are stored in, SUM: float32, or float64 where the inputs are. A variable that
a loop carries must have its format from the start: Triton promotes values, but not such a variable.
"""
# The language of the kernels has no types that a Python type checker knows.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _inside(keys, query, location, b, n, t, a, moved, T, A, F, FILTERS: tl.constexpr, EXACT: tl.constexpr,
            SUM: tl.constexpr):  # fmt: skip
    """tanh(W_k h_enc + W_q h_dec + W_f (F ∗ α)) of a block of frames t and attention units a.

    b is the utterance, n the sequence that attends to it.
    """
    f = tl.arange(0, FILTERS)
    mask = (t < T)[:, None] & (a < A)[None, :]
    k = tl.load(keys + (b * T + t)[:, None] * A + a[None, :], mask=mask, other=0.0).to(SUM)
    q = tl.load(query + n * A + a, mask=a < A, other=0.0).to(SUM)
    w = tl.load(location + a[None, :] * F + f[:, None], mask=(a < A)[None, :] & (f < F)[:, None], other=0.0)
    if EXACT:
        z = k + q[None, :] + tl.dot(moved, w, input_precision="ieee")
    else:
        z = k + q[None, :] + tl.dot(moved, w)
    return 1.0 - 2.0 / (tl.exp(2.0 * z) + 1.0), mask


@triton.jit(do_not_specialize=["K", "T"])
def energy_kernel(
    keys, query, moved_ptr, location, v, out, K, T, A, F,
    FILTERS: tl.constexpr, EXACT: tl.constexpr, FRAMES: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """energy[n, t] = Σ_a v_a tanh(…), for K sequences n of each utterance."""
    n = tl.program_id(0).to(tl.int64)
    b = n // K
    t = tl.program_id(1) * FRAMES + tl.arange(0, FRAMES)
    f = tl.arange(0, FILTERS)
    moved = tl.load(moved_ptr + (n * T + t)[:, None] * F + f[None, :],
                    mask=(t < T)[:, None] & (f < F)[None, :], other=0.0)  # fmt: skip
    SUM: tl.constexpr = out.dtype.element_ty
    total = tl.zeros((FRAMES,), SUM)
    for start in range(0, A, UNITS):
        a = start + tl.arange(0, UNITS)
        h, _ = _inside(keys, query, location, b, n, t, a, moved, T, A, F, FILTERS, EXACT, SUM)
        va = tl.load(v + a, mask=a < A, other=0.0).to(SUM)
        total += tl.sum(h * va[None, :], 1)
    tl.store(out + n * T + t, total, mask=t < T)


@triton.jit(do_not_specialize=["T", "blocks"])
def energy_gradient_kernel(
    keys, query, moved_ptr, location, v, grad, dz_out, dquery, dv, T, A, F, blocks,
    FILTERS: tl.constexpr, EXACT: tl.constexpr, FRAMES: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """dz = grad v (1 − tanh²), and sums over frames for the gradients of q and v, a row for each block."""
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    t = block * FRAMES + tl.arange(0, FRAMES)
    f = tl.arange(0, FILTERS)
    moved_mask = (t < T)[:, None] & (f < F)[None, :]
    moved = tl.load(moved_ptr + (b * T + t)[:, None] * F + f[None, :], mask=moved_mask, other=0.0)
    SUM: tl.constexpr = dquery.dtype.element_ty
    g = tl.load(grad + b * T + t, mask=t < T, other=0.0).to(SUM)
    for start in range(0, A, UNITS):
        a = start + tl.arange(0, UNITS)
        h, mask = _inside(keys, query, location, b, b, t, a, moved, T, A, F, FILTERS, EXACT, SUM)
        va = tl.load(v + a, mask=a < A, other=0.0).to(SUM)
        dz = g[:, None] * va[None, :] * (1.0 - h * h)
        tl.store(dz_out + (b * T + t)[:, None] * A + a[None, :], dz.to(dz_out.dtype.element_ty), mask=mask)
        row = (b * blocks + block) * A + a
        tl.store(dquery + row, tl.sum(dz, 0), mask=a < A)
        tl.store(dv + row, tl.sum(g[:, None] * h, 0), mask=a < A)
