"""The RNN-T loss that never stores B × T × U × V numbers.

    h(t, u) = tanh(f_t + g_u),   z(t, u) = W h(t, u) + b,   loss = −log Σ_alignments Π softmax(z)

Joint, output layer and loss are one autograd function. The forward pass runs over tiles of cells (t, u) and
keeps three numbers of each: the log-sum-exp of its logits and the log-probabilities of blank and of the next
label. The backward pass makes the logits of a tile again, turns them into

    ∂loss/∂z(t, u) = γ(t, u) softmax(z) − γ_blank(t, u) 1_blank − γ_label(t, u) 1_label

where γ is the posterior probability of a node or arc of the alignment lattice, and multiplies it out at once.
Two things save work beyond memory: cells that padding makes are never computed, and cells that no plausible
alignment visits (γ below `skip_below`) are left out of the backward pass; the error this makes is at most
`skip_below` × (cells in a row or column), against 1 for the row's own mass.

The factorised transducer (HAT, Variani et al. 2020) has the same lattice with other arcs: blank by a sigmoid, labels by
a softmax over labels alone,

    P(blank) = σ(z_blank),   P(v) = (1 − σ(z_blank)) s_v,   s = softmax(z without blank)
    ∂loss/∂z_v = γ_label (s_v − 1_label),   ∂loss/∂z_blank = γ σ(z_blank) − γ_blank

and what is kept of a cell is the log-sum-exp of the labels' logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.runtime import lattice
from ilme.runtime.cuda import kernels_run_on

__all__ = ["Activation", "Terms", "rnnt_loss"]

Activation = Literal["tanh", "relu"]

# Posterior below which a cell is left out of the backward pass, by the number format of the tiles.
SKIP_BELOW = {torch.float64: 0.0, torch.float32: 1e-8, torch.float16: 1e-6, torch.bfloat16: 1e-6}
CPU_TILE_NUMBERS = 1 << 19  # logits of a tile: 2 MiB of float32, which a core's cache holds
CUDA_TILE_CELLS = 16384  # enough rows that the matrix product fills the device


class Terms(NamedTuple):
    """The tensors of one call, as `rnnt_loss` describes them."""

    f: Tensor
    g: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor
    f_lengths: Tensor
    label_lengths: Tensor


@dataclass(frozen=True)
class TilePlan:
    """How one call is computed; everything but the tensors."""

    blank: int
    activation: Activation
    dtype: torch.dtype
    skip_below: float
    tile: int
    triton: bool
    factorised: bool = False


def rnnt_loss(
    f: Tensor,
    g: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    f_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    activation: Activation = "tanh",
    *,
    dtype: torch.dtype | None = None,
    skip_below: float | None = None,
    tile_cells: int | None = None,
    factorised: bool = False,
) -> Tensor:
    """−log P(y|x) of each utterance, (B,), float32 (float64 for float64 input).

    Args:
        f: Acoustic terms (B, T, J).
        g: Language terms (B, U + 1, J), the first for the empty sequence.
        weight: Output layer (V, J).
        bias: Its bias (V,).
        labels: Label ids (B, U), padded with any id.
        f_lengths: Frames of each utterance (B,), at least 1.
        label_lengths: Labels of each utterance (B,).
        blank: Id of blank.
        activation: The joint's nonlinearity.
        dtype: Number format of the tiles' matrix products. None: float32 (float64 for float64 input); under autocast or
            for 16-bit input, float16 where the activation is bounded by 1 on a CUDA device, which is as fast as
            bfloat16 and eight times finer, else bfloat16. Sums are always float32 or better.
        skip_below: Posterior under which a cell is left out of the backward pass. None: 1e-8 in float32, 1e-6 in 16
            bits; 0 leaves out none.
        tile_cells: Cells per tile. None: what suits the device.
        factorised: Blank by a sigmoid, labels by a softmax of their own (HAT).
    """
    terms = Terms(f, g, weight, bias, labels, f_lengths, label_lengths)
    check_terms(terms, blank, activation)
    dtype = dtype or default_dtype(f, activation)
    fast = dtype != torch.float64 and kernels_run_on(f.device)
    skip_below = SKIP_BELOW.get(dtype, 0.0) if skip_below is None else skip_below
    plan = TilePlan(blank, activation, dtype, skip_below, tile_cells or default_tile(terms), fast, factorised)
    loss: Tensor = _RnntLoss.apply(plan, *in_range(terms))  # type: ignore[no-untyped-call]
    return loss


def default_tile(terms: Terms) -> int:
    """Cells per tile: what suits the device."""
    return CUDA_TILE_CELLS if terms.f.is_cuda else min(2048, max(64, CPU_TILE_NUMBERS // len(terms.weight)))


def in_range(terms: Terms) -> Terms:
    """On a CUDA device lengths are brought into range, not checked: looking at them would wait for the device."""
    f, labels = terms.f, terms.labels
    return terms._replace(
        labels=labels.to(torch.long),
        f_lengths=terms.f_lengths.to(device=f.device, dtype=torch.long).clamp(1, f.shape[1]),
        label_lengths=terms.label_lengths.to(device=f.device, dtype=torch.long).clamp(0, labels.shape[1]),
    )


def check_terms(terms: Terms, blank: int, activation: str) -> None:
    """Shapes only on a CUDA device: reading values would wait for it."""
    f, g, weight, _, labels, f_lengths, label_lengths = terms
    if activation not in ("tanh", "relu"):
        raise BadInputError(f"activation must be 'tanh' or 'relu', got {activation!r}")
    if f.ndim != 3 or g.ndim != 3 or weight.ndim != 2 or labels.ndim != 2:
        raise BadInputError(
            "rnnt_loss takes f (B, T, J), g (B, U+1, J), weight (V, J) and labels (B, U); got "
            f"{tuple(f.shape)}, {tuple(g.shape)}, {tuple(weight.shape)}, {tuple(labels.shape)}"
        )
    B, T, J = f.shape
    V = len(weight)
    widths = {"g": (B, labels.shape[1] + 1, J), "weight": (V, J), "bias": (V,)}
    for name, shape in {**widths, "f_lengths": (B,), "label_lengths": (B,)}.items():
        found = tuple(getattr(terms, name).shape)
        if found != shape:
            raise BadInputError(f"{name} must have shape {shape} beside f {(B, T, J)}, got {found}")
    if not 0 <= blank < V:
        raise BadInputError(f"blank={blank} is not an id of the {V} outputs")
    if B == 0 or T == 0:
        raise BadInputError(f"rnnt_loss needs at least one utterance with one frame, got f {(B, T, J)}")
    if not f.is_cuda:
        frames, units = f_lengths.tolist(), label_lengths.tolist()
        bad = [i for i in range(B) if not (1 <= frames[i] <= T and 0 <= units[i] <= labels.shape[1])]
        if bad:
            raise BadInputError(
                f"utterance {bad[0]} of the batch has {frames[bad[0]]} frames and {units[bad[0]]} labels; "
                f"the batch holds 1 to {T} frames and 0 to {labels.shape[1]} labels"
            )


def default_dtype(f: Tensor, activation: str) -> torch.dtype:
    if f.dtype == torch.float64:
        return torch.float64
    sixteen = f.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(f.device.type)
    if not sixteen:
        return torch.float32
    return torch.float16 if f.is_cuda and activation == "tanh" else torch.bfloat16


class _RnntLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: TilePlan, *tensors: Tensor) -> Tensor:
        terms = Terms(*tensors)
        lengths = terms.f_lengths, terms.label_lengths
        with torch.autocast(terms.f.device.type, enabled=False):
            valid, _ = lattice._masks(terms.f.shape[1], terms.g.shape[1], *lengths)
            lse, blank, label = _tiles(terms, plan).forward(torch.nonzero(valid.flatten()).flatten())
            if plan.triton:
                from ilme.losses import rnnt_triton

                loss, *kept = rnnt_triton.forward_scores(blank, label, *lengths)
            else:
                loss, *kept = lattice.forward_scores(blank, label, *lengths)
        ctx.plan = plan
        ctx.save_for_backward(*terms, lse, blank, label, *kept)
        return -loss.to(lse.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        saved, count = ctx.saved_tensors, len(Terms._fields)
        terms = Terms(*saved[:count])
        lse, blank, label, *kept = saved[count:]
        lengths = terms.f_lengths, terms.label_lengths
        plan: TilePlan = ctx.plan
        with torch.autocast(terms.f.device.type, enabled=False):
            if plan.triton:
                from ilme.losses import rnnt_triton

                arcs = rnnt_triton.arc_posteriors(blank, label, kept[0], kept[1], *lengths)
            else:
                arcs = lattice.arc_posteriors(blank, label, kept[0], *lengths)
            # Arcs are weighted by each utterance's gradient, scaled to at most 1 so that 16 bits hold them.
            scale = grad.abs().amax().clamp(min=torch.finfo(lse.dtype).tiny).to(lse.dtype)
            visited = (arcs[0] + arcs[1] > plan.skip_below) & (grad != 0)[:, None, None]
            cells = torch.nonzero(visited.flatten()).flatten()
            each = (grad.to(lse.dtype) / scale)[:, None, None]
            blank_arcs, label_arcs = (x.to(lse.dtype) * each for x in arcs)
            made = _tiles(terms, plan).backward(cells, lse, blank_arcs, label_arcs)
        results = ((x * scale).to(like.dtype) for x, like in zip(made, terms[:4], strict=True))
        return (None, *results, None, None, None)


def _tiles(terms: Terms, plan: TilePlan) -> Any:
    if plan.triton:
        from ilme.losses.rnnt_triton import TritonTiles

        return TritonTiles(terms, plan)
    return TorchTiles(terms, plan)


class TorchTiles:
    """Joint and output layer over tiles of cells, in plain tensor operations.

    A cell is the flat index (b·T + t)·(U+1) + u; `row` is b·T + t and `col` is b·(U+1) + u.
    """

    kept: tuple[tuple[int, ...], ...] = ((), (), ())  # sizes of what `forward` keeps of a cell

    def __init__(self, terms: Terms, plan: TilePlan) -> None:
        f, g, weight, bias, labels, *_ = terms
        self.B, self.T, self.J = f.shape
        self.W = g.shape[1]
        self.exact = torch.float64 if f.dtype == torch.float64 else torch.float32
        self.f = f.detach().reshape(-1, self.J).to(self.exact)
        self.g = g.detach().reshape(-1, self.J).to(self.exact)
        self.weight, self.bias = weight.detach().to(plan.dtype), bias.detach().to(self.exact)
        self.next_label = torch.cat([labels, labels.new_zeros(len(labels), 1)], dim=1).flatten()
        self.blank, self.activation, self.dtype, self.tile = plan.blank, plan.activation, plan.dtype, plan.tile
        self.factorised = plan.factorised

    def _hidden(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = torch.div(cells, self.W, rounding_mode="floor")
        col = torch.div(row, self.T, rounding_mode="floor") * self.W + cells % self.W
        h = self.f.index_select(0, row).add_(self.g.index_select(0, col))
        h = h.tanh_() if self.activation == "tanh" else h.relu_()
        return h.to(self.dtype), row, col

    def _logits(self, h: Tensor) -> Tensor:
        if self.dtype == self.exact:
            return torch.addmm(self.bias, h, self.weight.t())
        return torch.mm(h, self.weight.t()).to(self.exact).add_(self.bias)

    def forward(self, cells: Tensor) -> tuple[Tensor, ...]:
        """Log-sum-exp of the logits, and log P of blank and of the next label, each (B, T, U + 1).

        Factorised, it is that of the labels' logits.
        """
        count = self.B * self.T * self.W
        kept = [torch.zeros(count, *size, dtype=self.exact, device=self.f.device) for size in self.kept]
        for tile in torch.split(cells, self.tile):
            h, _, col = self._hidden(tile)
            found = self._scores(self._logits(h), self.next_label.index_select(0, col))
            for all_cells, of_tile in zip(kept, found, strict=True):
                all_cells[tile] = of_tile
        return tuple(x.view(self.B, self.T, self.W, *size) for x, size in zip(kept, self.kept, strict=True))

    def _scores(self, z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        """What is kept of n cells, from their logits (n, V), which may be written over, and next labels (n,)."""
        at_blank = z[:, self.blank].clone()
        at_label = z.gather(1, label[:, None]).squeeze(1)
        if self.factorised:
            z[:, self.blank] = -torch.inf
        top = z.amax(1)
        total = z.sub_(top[:, None]).exp_().sum(1).log_().add_(top)
        at_label.sub_(total)
        if self.factorised:
            at_label.add_(nn.functional.logsigmoid(-at_blank))
            return total, nn.functional.logsigmoid(at_blank), at_label
        return total, at_blank.sub_(total), at_label

    def _slopes(self, z: Tensor, label: Tensor, lse: Tensor, on_blank: Tensor, on_label: Tensor) -> Tensor:
        """∂loss/∂z (n, V) of n cells, from their logits, which may be written over, and the weights of their arcs."""
        if self.factorised:
            into_blank = (on_blank + on_label) * z[:, self.blank].sigmoid()
            dz = z.sub_(lse[:, None]).exp_().mul_(on_label[:, None])
            dz[:, self.blank] = into_blank
        else:
            dz = z.sub_(lse[:, None]).exp_().mul_((on_blank + on_label)[:, None])
        dz[:, self.blank] -= on_blank
        return dz.scatter_add_(1, label[:, None], -on_label[:, None])

    def backward(self, cells: Tensor, lse: Tensor, *arcs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of f (B, T, J), g (B, U + 1, J), weight and bias, from what is kept of cells and from arc weights.

        Args:
            cells: Those that are not left out.
            lse: Log-sum-exp of the logits (B, T, U + 1).
            arcs: Weights of blank's and labels' arcs, each (B, T, U + 1).
        """
        df, dg = torch.zeros_like(self.f), torch.zeros_like(self.g)
        dw = torch.zeros(self.weight.shape, dtype=self.exact, device=self.f.device)
        db = torch.zeros_like(self.bias)
        flat = [x.flatten(0, 2) for x in (lse, *arcs)]
        for tile in torch.split(cells, self.tile):
            h, row, col = self._hidden(tile)
            label = self.next_label.index_select(0, col)
            dz = self._slopes(self._logits(h), label, *(x[tile] for x in flat))
            db += dz.sum(0)
            dz = dz.to(self.dtype)
            dh = torch.mm(dz, self.weight).to(self.exact)
            if self.dtype == self.exact:
                dw.addmm_(dz.t(), h)
            else:
                dw += torch.mm(dz.t(), h).to(self.exact)
            h = h.to(self.exact)
            if self.activation == "tanh":
                dh.addcmul_(dh * h, h, value=-1)
            else:
                dh *= h > 0
            _add_segments(df, row, dh)
            _add_segments(dg, col, dh)
        return df.view(self.B, self.T, self.J), dg.view(self.B, self.W, self.J), dw, db


def _add_segments(total: Tensor, index: Tensor, values: Tensor) -> None:
    """total[index[i]] += values[i], as one product with a 0/1 matrix: fast, and always in one order."""
    if not len(index):
        return
    low = int(index.min())
    width = int(index.max()) + 1 - low
    pick = values.new_zeros(width, len(index))
    pick[index - low, torch.arange(len(index), device=index.device)] = 1.0
    total[low : low + width].addmm_(pick, values)
