"""The transducer loss on a CUDA device: cuBLAS for the tiles' matrix products, Triton for everything between them.

Kernels, per tile of cells: the joint's activation; log-sum-exp with the two log-probabilities that the
lattice needs; logits to their gradient, in place; and the two sums of the activation's gradient, over the
labels of a frame and over the frames of a label. Each sum is made by one program in a fixed order, so two
runs give the same bits.

The lattice recursions run one program per utterance, frame by frame, with a scan over the labels. A row of α
is kept relative to its largest value, and what each row was shifted by is kept beside it: the scores of long
utterances reach thousands of nats, where float32 would resolve 1e-4 only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from ilme.losses import rnnt_kernels as kernels

if TYPE_CHECKING:
    from ilme.losses.rnnt import Terms, TilePlan

__all__ = ["TritonTiles", "arc_posteriors", "forward_scores"]

PAD_BIAS = -1e4  # the logit of outputs that only round V up: their probability is 0, and 16 bits hold it


def forward_scores(
    blank: Tensor, label: Tensor, f_lengths: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log P(y|x) (B,), and α (B, T, U + 1) with the shifts of its rows (B, T)."""
    B, T, W = blank.shape
    alpha, shifts, loss = torch.zeros_like(blank), blank.new_zeros(B, T), blank.new_zeros(B)
    block = max(16, triton.next_power_of_2(W))
    kernels.alpha_kernel[(B,)](
        blank,
        label,
        f_lengths,
        label_lengths,
        alpha,
        shifts,
        loss,
        T,
        W,
        BLOCK=block,
        num_warps=_warps(block),
    )
    return loss, alpha, shifts


def arc_posteriors(
    blank: Tensor, label: Tensor, alpha: Tensor, shifts: Tensor, f_lengths: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Posterior probability of each blank arc and of each label arc, both (B, T, U + 1), 0 where none is."""
    B, T, W = blank.shape
    on_blank, on_label = torch.zeros_like(blank), torch.zeros_like(blank)
    block = max(16, triton.next_power_of_2(W))
    kernels.posterior_kernel[(B,)](
        blank, label, alpha, shifts, f_lengths, label_lengths, on_blank, on_label, T, W,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return on_blank, on_label


def _warps(block: int) -> int:
    return max(1, min(4, block // 64))


class TritonTiles:
    """Joint and output layer over tiles of cells; the interface of `ilme.losses.rnnt.TorchTiles`."""

    def __init__(self, terms: Terms, plan: TilePlan) -> None:
        f, g, weight, bias, labels, *_ = terms
        dtype = plan.dtype
        self.B, self.T, self.J = f.shape
        self.W, self.V = g.shape[1], len(weight)
        self.f, self.g = f.detach().contiguous(), g.detach().contiguous()
        padding = -self.V % (8 if dtype == torch.float32 else 64)  # rows of the tile start where the products like it
        self.weight = torch.nn.functional.pad(weight.detach().to(dtype), (0, 0, 0, padding))
        self.bias = torch.nn.functional.pad(bias.detach().to(dtype), (0, padding), value=PAD_BIAS)
        self.next_label = torch.cat([labels, labels.new_zeros(len(labels), 1)], dim=1).to(torch.int32)
        self.blank, self.tanh, self.dtype = plan.blank, plan.activation == "tanh", dtype
        self.factorised = plan.factorised
        cells = self.B * self.T * self.W
        self.tile = min(plan.tile, cells)
        self.h = torch.empty(self.tile, self.J, dtype=dtype, device=f.device)
        self.z = torch.empty(self.tile, len(self.weight), dtype=dtype, device=f.device)

    def _logits(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        n = len(cells)
        h, z = self.h[:n], self.z[:n]
        rows, cols = 16, min(256, triton.next_power_of_2(self.J))
        grid = (triton.cdiv(n, rows), triton.cdiv(self.J, cols))
        kernels.hidden_kernel[grid](
            self.f, self.g, cells, h, n, self.T, self.W, self.J, TANH=self.tanh, ROWS=rows, COLS=cols
        )
        torch.addmm(self.bias, h, self.weight.t(), out=z)
        return h, z

    def _per_cell(self) -> dict[str, Any]:
        block = min(4096, triton.next_power_of_2(len(self.weight)))
        return {"FACTORISED": self.factorised, "BLOCK": block, "num_warps": 8 if block > 1024 else 4}

    def forward(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.B, self.T, self.W)
        lse, blank, label = (torch.zeros(shape, dtype=torch.float32, device=self.f.device) for _ in range(3))
        for tile in torch.split(cells, self.tile):
            _, z = self._logits(tile)
            kernels.scores_kernel[(len(tile),)](
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
            kernels.gradient_kernel[(len(tile),)](
                z, tile, self.next_label, lse, blank_arcs, label_arcs, len(self.weight),
                self.T, self.W, self.blank, **self._per_cell(),
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
        kernels.frame_sums_kernel[(last_row - first_row + 1, parts)](
            dh, h, row_starts, df, low, high, first_row, self.J, **shape
        )
        utterances = last_row // self.T - first_row // self.T + 1
        kernels.label_sums_kernel[(utterances * self.W, parts)](
            dh, h, positions, dg, low, high, first_row, last_row, self.T, self.W, self.J, **shape
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b with float32 sums throughout, whatever the number format of a and b."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        total.add_(torch.mm(a, b, out_dtype=total.dtype))
    else:
        total.add_(torch.mm(a.to(total.dtype), b.to(total.dtype)))
