"""The loss of a token-and-duration transducer (TDT, Xu et al. 2023), without B × T × U × V numbers.

    h = tanh(f_t + g_u),   P(v | t, u) = softmax(W h + b)_v,   P(d | t, u) = softmax(W' h + b')_d
    loss = −log Σ_alignments Π P(label or blank | t, u) P(d | t, u)

A label goes from (t, u) to (t + d, u + 1) for any duration d, blank to (t + d, u) for all but 0; who reaches the end of
the audio, or would pass it, has ended. That is what `ilme.search.tdt` searches.

The tiles are those of the RNN-T's loss: of a cell (t, u) are kept the log-sum-exp of its logits and the
log-probabilities of blank, of the next label and of the D durations, and logits are made again for the gradient

    ∂loss/∂z = γ softmax(z) − γ_blank 1_blank − γ_label 1_label,   ∂loss/∂z'_d = γ P(d) − γ_d

where γ_d is the posterior probability of leaving the cell with duration d. The posteriors are the derivatives of
log P(y|x) by the arcs' scores; the recursion over diagonals t + u is differentiated by torch, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ilme.errors import BadInputError
from ilme.losses.rnnt import SKIP_BELOW, Terms, TilePlan, TorchTiles, check_terms, default_dtype, default_tile, in_range
from ilme.runtime import lattice

__all__ = ["tdt_loss"]


def tdt_loss(
    f: Tensor,
    g: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    f_lengths: Tensor,
    label_lengths: Tensor,
    durations: Sequence[int],
    blank: int = 0,
    *,
    dtype: torch.dtype | None = None,
    skip_below: float | None = None,
    tile_cells: int | None = None,
) -> Tensor:
    """−log P(y|x) of each utterance, (B,), float32 (float64 for float64 input).

    Args:
        f: Acoustic terms (B, T, J).
        g: Language terms (B, U + 1, J), the first for the empty sequence.
        weight: Output layer (V + D, J): rows of the labels, then rows of the durations.
        bias: Its bias (V + D,).
        labels: Label ids (B, U), padded with any id.
        f_lengths: Frames of each utterance (B,), at least 1.
        label_lengths: Labels of each utterance (B,).
        durations: Frames that each of the D duration logits stands for.
        blank: Id of blank.
        dtype: Number format of the tiles' matrix products, as of `rnnt_loss`.
        skip_below: Posterior under which a cell is left out of the backward pass, as of `rnnt_loss`.
        tile_cells: Cells per tile. None: what suits the device.
    """
    terms = Terms(f, g, weight, bias, labels, f_lengths, label_lengths)
    check_terms(terms, blank, "tanh")
    frames = tuple(durations)
    if len(set(frames)) != len(frames) or min(frames, default=-1) < 0 or max(frames, default=0) < 1:
        raise BadInputError(f"durations must be different numbers of frames, one of them above 0, got {frames}")
    if len(weight) - len(frames) <= blank:
        raise BadInputError(f"weight has {len(weight)} rows for {len(frames)} durations and a blank with id {blank}")
    dtype = dtype or default_dtype(f, "tanh")
    skip_below = SKIP_BELOW.get(dtype, 0.0) if skip_below is None else skip_below
    plan = TilePlan(blank, "tanh", dtype, skip_below, tile_cells or default_tile(terms), False)
    loss: Tensor = _TdtLoss.apply(plan, frames, *in_range(terms))  # type: ignore[no-untyped-call]
    return loss


class _TdtLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: TilePlan, durations: tuple[int, ...], *tensors: Tensor) -> Tensor:
        terms = Terms(*tensors)
        lengths = terms.f_lengths, terms.label_lengths
        with torch.autocast(terms.f.device.type, enabled=False):
            valid, _ = lattice._masks(terms.f.shape[1], terms.g.shape[1], *lengths)
            lse, *scores = _Tiles(terms, plan, len(durations)).forward(torch.nonzero(valid.flatten()).flatten())
            with torch.enable_grad():
                arcs = [x.double().requires_grad_() for x in scores]
                found = log_probability(arcs[0], arcs[1], arcs[2], durations, *lengths)
                learns = any(ctx.needs_input_grad)
                posteriors = torch.autograd.grad(found.sum(), arcs) if learns else ()
        ctx.plan, ctx.count = plan, len(durations)
        ctx.save_for_backward(*terms, lse, scores[2], *(x.to(lse.dtype) for x in posteriors))
        return -found.detach().to(lse.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        terms, (lse, log_durations, *arcs) = Terms(*ctx.saved_tensors[:7]), ctx.saved_tensors[7:]
        plan: TilePlan = ctx.plan
        with torch.autocast(terms.f.device.type, enabled=False):
            # Arcs are weighted by each utterance's gradient, scaled to at most 1 so that 16 bits hold them.
            scale = grad.abs().amax().clamp(min=torch.finfo(lse.dtype).tiny).to(lse.dtype)
            visited = (arcs[0] + arcs[1] > plan.skip_below) & (grad != 0)[:, None, None]
            cells = torch.nonzero(visited.flatten()).flatten()
            each = (grad.to(lse.dtype) / scale)[:, None, None]
            on_blank, on_label, on_durations = arcs[0] * each, arcs[1] * each, arcs[2] * each[..., None]
            tiles = _Tiles(terms, plan, ctx.count)
            made = tiles.backward(cells, lse, on_blank, on_label, log_durations, on_durations)
        results = ((x * scale).to(like.dtype) for x, like in zip(made, terms[:4], strict=True))
        return (None, None, *results, None, None, None)


class _Tiles(TorchTiles):
    """The RNN-T's, with the logits of D durations behind those of the V labels."""

    def __init__(self, terms: Terms, plan: TilePlan, durations: int) -> None:
        super().__init__(terms, plan)
        self.kept, self.units = ((), (), (), (durations,)), len(terms.weight) - durations

    def _scores(self, z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        return (*super()._scores(z[:, : self.units], label), z[:, self.units :].log_softmax(1))

    def _slopes(self, z: Tensor, label: Tensor, lse: Tensor, *arcs: Tensor) -> Tensor:
        on_blank, on_label, log_durations, on_durations = arcs
        super()._slopes(z[:, : self.units], label, lse, on_blank, on_label)
        z[:, self.units :] = (on_blank + on_label)[:, None] * log_durations.exp() - on_durations
        return z


def log_probability(
    blank: Tensor, label: Tensor, each: Tensor, durations: Sequence[int], f_lengths: Tensor, label_lengths: Tensor
) -> Tensor:
    """log P(y|x) (B,), from which torch can go back to the scores.

    Args:
        blank, label: log P(blank | t, u) and log P(y_{u+1} | t, u), (B, T, U + 1).
        each: log P(d | t, u), (B, T, U + 1, D).
        durations: Frames that each of the D stands for.
        f_lengths, label_lengths: Frames and labels of each utterance (B,).
    """
    B, T, W = blank.shape
    has_blank, has_label = lattice._masks(T, W, f_lengths, label_lengths)
    stays = [lattice._skew(blank + each[..., i], has_blank) for i in range(len(durations))]
    emits = [lattice._skew(label + each[..., i], has_label) for i in range(len(durations))]
    moving = [i for i, d in enumerate(durations) if d]
    # Arcs by the diagonal and the place where they arrive, (S, arcs, B, W): blanks, then labels.
    coming = [_later(stays[i], durations[i]) for i in moving]
    coming += [_later(_next_label(x), d + 1) for d, x in zip(durations, emits, strict=True)]
    arcs = torch.stack(coming, 1)
    from_where = [2 * (durations[i] - 1) for i in moving] + [2 * d + 1 for d in durations]
    source = torch.tensor(from_where, device=blank.device)
    reached = blank.new_full((B, W), lattice.NEGATIVE)
    reached[:, 0] = 0.0
    alphas = [reached]  # of each diagonal t + u (B, W)
    past = blank.new_full(
        (2 * (max(durations) + 1), B, W), lattice.NEGATIVE
    )  # of the last ones, plain and one label on
    for s in range(1, T + W - 1):
        past = torch.cat([reached[None], _next_label(reached)[None], past[:-2]])
        reached = (past[source] + arcs[s]).logsumexp(0).clamp(min=lattice.NEGATIVE)
        alphas.append(reached)
    alpha = lattice._straighten(torch.stack(alphas), T)
    left = f_lengths[:, None] - torch.arange(T, device=blank.device)  # frames from each to the end (B, T)
    ways = []
    for i, d in enumerate(durations):
        ends = (left > 0) & (left <= d)
        for score, u in ((blank, label_lengths), (label, label_lengths - 1)):
            whole = (alpha + score + each[..., i]).gather(2, u.clamp(min=0)[:, None, None].expand(B, T, 1)).squeeze(2)
            ways.append(torch.where(ends & (u >= 0)[:, None], whole, lattice.NEGATIVE))
    return torch.cat(ways, 1).logsumexp(1)


def _later(diagonals: Tensor, steps: int) -> Tensor:
    """(S, B, W), moved so many diagonals on."""
    return pad(diagonals, (0, 0, 0, 0, steps, 0), value=lattice.NEGATIVE)[: len(diagonals)]


def _next_label(scores: Tensor) -> Tensor:
    """(…, W), moved to the next label."""
    return pad(scores[..., :-1], (1, 0), value=lattice.NEGATIVE)
