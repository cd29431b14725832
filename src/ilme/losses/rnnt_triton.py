"""The transducer loss on a CUDA device: cuBLAS for the tiles' matrix products, Triton for everything between them.

Kernels, per tile of cells: the joint's activation; log-sum-exp with the two log-probabilities that the lattice needs;
logits to their gradient, in place; and the two sums of the activation's gradient, over the labels of a frame and over
the frames of a label. Each sum is made by one program in a fixed order, so two runs give the same bits.

The lattice recursions run one program per utterance, frame by frame, with a scan over the labels. A row of α is kept
relative to its largest value, and what each row was shifted by is kept beside it: the scores of long utterances reach
thousands of nats, where float32 would resolve 1e-4 only.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["TritonTiles", "arc_posteriors", "forward_scores"]

NEGATIVE: tl.constexpr = tl.constexpr(-1e30)
PAD_BIAS = -1e4  # the logit of outputs that only round V up: their probability is 0, and 16 bits hold it


@triton.jit
def _activate(x, TANH: tl.constexpr):
    if TANH:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    else:
        return tl.maximum(x, 0.0)


@triton.jit
def _hidden_kernel(f, g, cells, h, n, T, W, J, TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
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
def _scores_kernel(z, cells, next_label, lse, blank_out, label_out, V, T, W, blank, BLOCK: tl.constexpr):
    """Of one cell: log Σ_v e^z, and log P of blank and of the next label."""
    i = tl.program_id(0).to(tl.int64)
    row_z = z + i * V
    v = tl.arange(0, BLOCK)
    top = tl.full((), NEGATIVE, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(row_z + start + v, mask=start + v < V, other=NEGATIVE).to(tl.float32)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    value = top + tl.log(total)
    cell = tl.load(cells + i)
    label = tl.load(next_label + cell // W // T * W + cell % W)
    tl.store(lse + cell, value)
    tl.store(blank_out + cell, tl.load(row_z + blank).to(tl.float32) - value)
    tl.store(label_out + cell, tl.load(row_z + label).to(tl.float32) - value)


@triton.jit
def _gradient_kernel(z, cells, next_label, lse, blank_arcs, label_arcs, V, T, W, blank, BLOCK: tl.constexpr):
    """z becomes γ softmax(z) − γ_blank 1_blank − γ_label 1_label, in place."""
    i = tl.program_id(0).to(tl.int64)
    row_z = z + i * V
    v = tl.arange(0, BLOCK)
    cell = tl.load(cells + i)
    label = tl.load(next_label + cell // W // T * W + cell % W)
    on_blank, on_label = tl.load(blank_arcs + cell), tl.load(label_arcs + cell)
    value = tl.load(lse + cell)
    for start in range(0, V, BLOCK):
        at = start + v
        x = tl.load(row_z + at, mask=at < V, other=NEGATIVE).to(tl.float32)
        d = tl.exp(x - value) * (on_blank + on_label)
        d -= tl.where(at == blank, on_blank, 0.0) + tl.where(at == label, on_label, 0.0)
        tl.store(row_z + at, d.to(z.dtype.element_ty), mask=at < V)


@triton.jit
def _through_activation(dh, h, TANH: tl.constexpr):
    if TANH:
        return dh * (1.0 - h * h)
    else:
        return tl.where(h > 0, dh, 0.0)


@triton.jit
def _frame_sums_kernel(
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


@triton.jit
def _label_sums_kernel(
    dh, h, positions, dg, low, high, first_row, last_row, T, W, J,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dg[column] += Σ over the column's cells that lie in the tile; `positions` says where a cell is, −1 if nowhere."""
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


@triton.jit
def _alpha_kernel(blank, label, frames, units, alpha, shifts, loss, T, W, BLOCK: tl.constexpr):
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


@triton.jit
def _posterior_kernel(blank, label, alpha, shifts, frames, units, blank_arcs, label_arcs, T, W, BLOCK: tl.constexpr):
    """Arc posteriors of one utterance, from the last frame to the first (see `ilme.losses.lattice`)."""
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


def forward_scores(
    blank: Tensor, label: Tensor, f_lengths: Tensor, label_lengths: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """log P(y|x) (B,), and α (B, T, U + 1) with the shifts of its rows (B, T)."""
    B, T, W = blank.shape
    alpha, shifts, loss = torch.zeros_like(blank), blank.new_zeros(B, T), blank.new_zeros(B)
    block = triton.next_power_of_2(W)
    _alpha_kernel[(B,)](
        blank, label, f_lengths, label_lengths, alpha, shifts, loss, T, W, BLOCK=block, num_warps=_warps(block)
    )
    return loss, (alpha, shifts)


def arc_posteriors(
    blank: Tensor, label: Tensor, alpha: Tensor, shifts: Tensor, f_lengths: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Posterior probability of each blank arc and of each label arc, both (B, T, U + 1), 0 where there is none."""
    B, T, W = blank.shape
    on_blank, on_label = torch.zeros_like(blank), torch.zeros_like(blank)
    block = triton.next_power_of_2(W)
    _posterior_kernel[(B,)](
        blank, label, alpha, shifts, f_lengths, label_lengths, on_blank, on_label, T, W,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return on_blank, on_label


def _warps(block: int) -> int:
    return max(1, min(4, block // 64))


class TritonTiles:
    """Joint and output layer over tiles of cells on a CUDA device; the interface of `ilme.losses.rnnt.TorchTiles`."""

    def __init__(
        self,
        f: Tensor,
        g: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        blank: int,
        activation: str,
        dtype: torch.dtype,
        tile: int,
    ) -> None:
        self.B, self.T, self.J = f.shape
        self.W, self.V = g.shape[1], len(weight)
        self.f, self.g = f.detach().contiguous(), g.detach().contiguous()
        padding = -self.V % (8 if dtype == torch.float32 else 64)  # rows of the tile start where the products like it
        self.weight = torch.nn.functional.pad(weight.detach().to(dtype), (0, 0, 0, padding))
        self.bias = torch.nn.functional.pad(bias.detach().to(dtype), (0, padding), value=PAD_BIAS)
        self.next_label = torch.cat([labels, labels.new_zeros(len(labels), 1)], dim=1).to(torch.int32)
        self.blank, self.tanh, self.dtype = blank, activation == "tanh", dtype
        cells = self.B * self.T * self.W
        self.tile = min(tile, cells)
        self.h = torch.empty(self.tile, self.J, dtype=dtype, device=f.device)
        self.z = torch.empty(self.tile, len(self.weight), dtype=dtype, device=f.device)

    def _logits(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        n = len(cells)
        h, z = self.h[:n], self.z[:n]
        rows, cols = 16, min(256, triton.next_power_of_2(self.J))
        grid = (triton.cdiv(n, rows), triton.cdiv(self.J, cols))
        _hidden_kernel[grid](
            self.f, self.g, cells, h, n, self.T, self.W, self.J, TANH=self.tanh, ROWS=rows, COLS=cols
        )
        torch.addmm(self.bias, h, self.weight.t(), out=z)
        return h, z

    def _per_cell(self) -> dict[str, Any]:
        block = min(4096, triton.next_power_of_2(len(self.weight)))
        return {"BLOCK": block, "num_warps": 8 if block > 1024 else 4}

    def forward(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.B, self.T, self.W)
        lse, blank, label = (torch.zeros(shape, dtype=torch.float32, device=self.f.device) for _ in range(3))
        for tile in cells.split(self.tile):
            _, z = self._logits(tile)
            _scores_kernel[(len(tile),)](
                z, tile, self.next_label, lse, blank, label, len(self.weight), self.T, self.W, self.blank,
                **self._per_cell(),
            )  # fmt: skip
        return lse, blank, label

    def backward(
        self, cells: Tensor, lse: Tensor, blank_arcs: Tensor, label_arcs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        device = self.f.device
        df = torch.zeros(self.B * self.T, self.J, device=device)
        dg = torch.zeros(self.B * self.W, self.J, device=device)
        dw = torch.zeros(self.weight.shape, device=device)
        db = torch.zeros(len(self.weight), device=device)
        dh_buffer = torch.empty_like(self.h)
        row_starts = torch.searchsorted(cells, torch.arange(self.B * self.T + 1, device=device) * self.W)
        positions = torch.full((self.B * self.T * self.W,), -1, dtype=torch.int32, device=device)
        positions[cells] = torch.arange(len(cells), dtype=torch.int32, device=device)
        row_starts = row_starts.to(torch.int32)
        starts = range(0, len(cells), self.tile)
        edges = [i for low in starts for i in (low, min(low + self.tile, len(cells)) - 1)]
        edge_rows = (cells[edges] // self.W).tolist()  # one wait for the device, for all tiles
        blank_arcs, label_arcs = blank_arcs.contiguous(), label_arcs.contiguous()
        for k, low in enumerate(starts):
            tile = cells[low : low + self.tile]
            high = low + len(tile)
            first_row, last_row = edge_rows[2 * k], edge_rows[2 * k + 1]
            h, z = self._logits(tile)
            _gradient_kernel[(len(tile),)](
                z, tile, self.next_label, lse, blank_arcs, label_arcs, len(self.weight), self.T, self.W, self.blank,
                **self._per_cell(),
            )  # fmt: skip
            dh = torch.mm(z, self.weight, out=dh_buffer[: len(tile)])
            _add_product(dw, z.t(), h)
            db += z.sum(0, dtype=torch.float32)
            self._sum_up(dh, h, row_starts, positions, df, dg, low, high, first_row, last_row)
        return df.view(self.B, self.T, -1), dg.view(self.B, self.W, -1), dw[: self.V], db[: self.V]

    def _sum_up(
        self,
        dh: Tensor,
        h: Tensor,
        row_starts: Tensor,
        positions: Tensor,
        df: Tensor,
        dg: Tensor,
        low: int,
        high: int,
        first_row: int,
        last_row: int,
    ) -> None:
        cols = min(128, triton.next_power_of_2(self.J))
        shape = {"TANH": self.tanh, "ROWS": 16, "COLS": cols}
        parts = triton.cdiv(self.J, cols)
        _frame_sums_kernel[(last_row - first_row + 1, parts)](
            dh, h, row_starts, df, low, high, first_row, self.J, **shape
        )
        utterances = last_row // self.T - first_row // self.T + 1
        _label_sums_kernel[(utterances * self.W, parts)](
            dh, h, positions, dg, low, high, first_row, last_row, self.T, self.W, self.J, **shape
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b with float32 sums throughout, whatever the number format of a and b."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        total.add_(torch.mm(a, b, out_dtype=total.dtype))  # type: ignore[call-overload]
    else:
        total.add_(torch.mm(a.to(total.dtype), b.to(total.dtype)))
