"""Triton kernels of the transducer loss. `ilme.losses.rnnt_triton` says what they are for and calls them.

Sizes that differ from batch to batch are not specialised (do_not_specialize), else each would compile anew.
"""
# The language of the kernels has no types that a Python type checker knows.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

NEGATIVE = tl.constexpr(-1e30)  # stands for log 0


@triton.jit
def _activate(x, TANH: tl.constexpr):
    if TANH:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    else:
        return tl.maximum(x, 0.0)


@triton.jit(do_not_specialize=["n", "T", "W"])
def hidden_kernel(f, g, cells, h, n, T, W, J, TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """h[i] = activation(f[row of cell i] + g[column of cell i])."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = i < n
    cell = tl.load(cells + i, mask=inside, other=0)
    row = cell // W
    col = row // T * W + cell % W
    mask = inside[:, None] & (j < J)[None, :]
    a = tl.load(f + row[:, None] * J + j[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(g + col[:, None] * J + j[None, :], mask=mask, other=0.0).to(tl.float32)
    out = h + i.to(tl.int64)[:, None] * J + j[None, :]
    tl.store(out, _activate(a + b, TANH).to(h.dtype.element_ty), mask=mask)


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit(do_not_specialize=["T", "W", "blank"])
def scores_kernel(
    z, cells, next_label, lse, blank_out, label_out, V, T, W, blank, FACTORISED: tl.constexpr, BLOCK: tl.constexpr
):
    """Of one cell: log Σ_v e^z, factorised over the labels alone, and log P of blank and of the next label."""
    i = tl.program_id(0).to(tl.int64)
    row_z = z + i * V
    v = tl.arange(0, BLOCK)
    top = tl.full((), NEGATIVE, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(row_z + start + v, mask=start + v < V, other=-float("inf")).to(tl.float32)
        if FACTORISED:
            x = tl.where(start + v == blank, -float("inf"), x)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    value = top + tl.log(total)
    cell = tl.load(cells + i)
    label = tl.load(next_label + cell // W // T * W + cell % W)
    tl.store(lse + cell, value)
    at_blank = tl.load(row_z + blank).to(tl.float32)
    at_label = tl.load(row_z + label).to(tl.float32) - value
    if FACTORISED:
        tl.store(blank_out + cell, _log_sigmoid(at_blank))
        tl.store(label_out + cell, at_label + _log_sigmoid(-at_blank))
    else:
        tl.store(blank_out + cell, at_blank - value)
        tl.store(label_out + cell, at_label)


@triton.jit(do_not_specialize=["T", "W", "blank"])
def gradient_kernel(
    z, cells, next_label, lse, blank_arcs, label_arcs, V, T, W, blank, FACTORISED: tl.constexpr, BLOCK: tl.constexpr
):
    """z becomes γ softmax(z) − γ_blank 1_blank − γ_label 1_label, in place; factorised, see `ilme.losses.rnnt`."""
    i = tl.program_id(0).to(tl.int64)
    row_z = z + i * V
    v = tl.arange(0, BLOCK)
    cell = tl.load(cells + i)
    label = tl.load(next_label + cell // W // T * W + cell % W)
    on_blank, on_label = tl.load(blank_arcs + cell), tl.load(label_arcs + cell)
    value = tl.load(lse + cell)
    for start in range(0, V, BLOCK):
        at = start + v
        x = tl.load(row_z + at, mask=at < V, other=-float("inf")).to(tl.float32)
        if FACTORISED:
            chance = 1.0 / (1.0 + tl.exp(-x))
            d = tl.where(at == blank, chance * (on_blank + on_label), tl.exp(x - value) * on_label)
        else:
            d = tl.exp(x - value) * (on_blank + on_label)
        d -= tl.where(at == blank, on_blank, 0.0) + tl.where(at == label, on_label, 0.0)
        tl.store(row_z + at, d.to(z.dtype.element_ty), mask=at < V)


@triton.jit
def _through_activation(dh, h, TANH: tl.constexpr):
    if TANH:
        return dh * (1.0 - h * h)
    else:
        return tl.where(h > 0, dh, 0.0)


@triton.jit(do_not_specialize=["low", "high", "first_row"])
def frame_sums_kernel(
    dh, h, row_starts, df, low, high, first_row, J, TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """df[row] += Σ over the row's cells that lie in the tile [low, high)."""
    row = (first_row + tl.program_id(0)).to(tl.int64)
    j = tl.program_id(1) * COLS + tl.arange(0, COLS)
    start = tl.maximum(tl.load(row_starts + row), low) - low
    stop = tl.minimum(tl.load(row_starts + row + 1), high) - low
    total = tl.zeros((COLS,), tl.float32)
    for at in range(start, stop, ROWS):
        i = at + tl.arange(0, ROWS)
        mask = (i < stop)[:, None] & (j < J)[None, :]
        place = i.to(tl.int64)[:, None] * J + j[None, :]
        a = tl.load(dh + place, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(h + place, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(_through_activation(a, b, TANH), 0)
    out = df + row * J + j
    tl.store(out, tl.load(out, mask=j < J, other=0.0) + total, mask=j < J)


@triton.jit(do_not_specialize=["low", "high", "first_row", "last_row", "T", "W"])
def label_sums_kernel(
    dh, h, positions, dg, low, high, first_row, last_row, T, W, J,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dg[column] += Σ over the column's cells in the tile; `positions` says where a cell is, or −1."""
    col = first_row // T * W + tl.program_id(0)
    b, u = col // W, col % W
    j = tl.program_id(1) * COLS + tl.arange(0, COLS)
    start, stop = tl.maximum(first_row, b * T), tl.minimum(last_row + 1, (b + 1) * T)
    total = tl.zeros((COLS,), tl.float32)
    for at in range(start, stop, ROWS):
        row = at + tl.arange(0, ROWS)
        i = tl.load(positions + row.to(tl.int64) * W + u, mask=row < stop, other=-1)
        mask = ((i >= low) & (i < high))[:, None] & (j < J)[None, :]
        place = (i - low).to(tl.int64)[:, None] * J + j[None, :]
        x = tl.load(dh + place, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(h + place, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(_through_activation(x, y, TANH), 0)
    out = dg + col.to(tl.int64) * J + j
    tl.store(out, tl.load(out, mask=j < J, other=0.0) + total, mask=j < J)


@triton.jit
def _logadd(a, b):
    top = tl.maximum(a, b)
    return top + tl.log(1.0 + tl.exp(tl.minimum(a, b) - top))


@triton.jit
def _logadd_step(step_a, score_a, step_b, score_b):
    """Composition of x ↦ logadd(score, x + step)."""
    return tl.maximum(step_a + step_b, NEGATIVE), _logadd(score_a + step_b, score_b)


@triton.jit
def _linear_step(factor_a, term_a, factor_b, term_b):
    """Composition of x ↦ term + factor · x."""
    return factor_a * factor_b, term_a * factor_b + term_b


@triton.jit(do_not_specialize=["T", "W"])
def alpha_kernel(blank, label, frames, units, alpha, shifts, loss, T, W, BLOCK: tl.constexpr):
    """α of one utterance, row by row; each row is stored relative to its largest value."""
    b = tl.program_id(0).to(tl.int64)
    n, m = tl.load(frames + b), tl.load(units + b)
    u = tl.arange(0, BLOCK)
    inside = u <= m
    arcs_in = (u > 0) & inside
    total = tl.full((), 0.0, tl.float32)
    entering = tl.where(u == 0, 0.0, NEGATIVE)  # α(t−1, u) + blank(t−1, u)
    for t in range(0, n):
        here = (b * T + t) * W + u
        steps = tl.load(label + here - 1, mask=arcs_in, other=NEGATIVE)
        leave = tl.load(blank + here, mask=inside, other=NEGATIVE)
        _, row = tl.associative_scan((steps, entering), 0, _logadd_step)
        row = tl.where(inside, row, NEGATIVE)
        shift = tl.max(row, 0)
        row = tl.maximum(row - shift, NEGATIVE)
        total += shift
        tl.store(alpha + here, row, mask=inside)
        tl.store(shifts + b * T + t, shift)
        entering = tl.maximum(row + leave, NEGATIVE)
    tl.store(loss + b, total + tl.max(tl.where(u == m, entering, NEGATIVE), 0))


@triton.jit(do_not_specialize=["T", "W"])
def posterior_kernel(blank, label, alpha, shifts, frames, units, blank_arcs, label_arcs, T, W, BLOCK: tl.constexpr):
    """Arc posteriors of one utterance, from the last frame to the first (see `ilme.runtime.lattice`)."""
    b = tl.program_id(0).to(tl.int64)
    n, m = tl.load(frames + b), tl.load(units + b)
    u = tl.arange(0, BLOCK)
    inside = u <= m
    has_label = u < m
    node = tl.zeros((BLOCK,), tl.float32)
    below = tl.zeros((BLOCK,), tl.float32)  # α(t+1, u), before the shift of that row
    shift = tl.full((), 0.0, tl.float32)
    for back in range(0, n):
        t = n - 1 - back
        here = (b * T + t) * W + u
        row = tl.load(alpha + here, mask=inside, other=NEGATIVE)
        right = tl.load(alpha + here + 1, mask=has_label, other=0.0)
        leave = tl.load(blank + here, mask=inside, other=NEGATIVE)
        emit = tl.load(label + here, mask=has_label, other=NEGATIVE)
        stay = tl.where(back == 0, tl.where(u == m, 1.0, 0.0), node * tl.exp(row + leave - below - shift))
        stay = tl.where(inside, stay, 0.0)
        share = tl.where(has_label, tl.exp(row + emit - right), 0.0)
        _, node = tl.associative_scan((share, stay), 0, _linear_step, reverse=True)
        node = tl.where(inside, node, 0.0)
        tl.store(blank_arcs + here, stay, mask=inside)
        tl.store(label_arcs + here, tl.maximum(node - stay, 0.0), mask=inside)
        below = tl.where(inside, row, 0.0)
        shift = tl.load(shifts + b * T + t)
