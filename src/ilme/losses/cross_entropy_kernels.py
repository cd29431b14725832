"""Triton kernel of the tiled cross-entropy: the logits of one token become its loss and, in place, their gradient."""
# The language of the kernel has no types that a Python type checker knows.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def loss_and_gradient_kernel(z, targets, losses, V, smoothing, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    """losses[i] = lse − (1 − s) z_y − s mean(z);  z ← softmax(z) − (1 − s) 1_y − s / V."""
    i = tl.program_id(0).to(tl.int64)
    row = z + i * V
    v = tl.arange(0, BLOCK)
    top = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    mean = tl.full((), 0.0, tl.float32)
    for start in range(0, V, BLOCK):
        inside = start + v < V
        x = tl.load(row + start + v, mask=inside, other=0.0).to(tl.float32)
        mean += tl.sum(x, 0) / V
        x = tl.where(inside, x, -1e30)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    lse = top + tl.log(total)
    y = tl.load(targets + i)
    tl.store(losses + i, lse - (1.0 - smoothing) * tl.load(row + y).to(tl.float32) - smoothing * mean)
    if GRADIENT:
        tl.debug_barrier()  # every thread has read z_y before any of them overwrites it
        for start in range(0, V, BLOCK):
            at = start + v
            x = tl.load(row + at, mask=at < V, other=0.0).to(tl.float32)
            d = tl.exp(x - lse) - smoothing / V - tl.where(at == y, 1.0 - smoothing, 0.0)
            tl.store(row + at, d.to(z.dtype.element_ty), mask=at < V)
