"""The transducer's alignment lattice: node (t, u) means that u labels were emitted before frame t ends.

    α(t, u) = logadd( α(t−1, u) + blank(t−1, u),  α(t, u−1) + label(t, u−1) ),   α(0, 0) = 0
    log P(y|x) = α(T−1, U) + blank(T−1, U)

The gradient needs the posterior probability of each arc. It is found by walking back from the end and
dividing the probability of each node among its two incoming arcs:

    G(T−1, U) = 1
    G(t, u)   = G(t+1, u) e^{α(t,u) + blank(t,u) − α(t+1,u)} + G(t, u+1) e^{α(t,u) + label(t,u) − α(t,u+1)}

This file works on whole anti-diagonals d = t + u of all utterances at once, in float64, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NEGATIVE", "arc_posteriors", "forward_scores"]

NEGATIVE = -1e30  # stands for log 0: finite, so that differences of two of them are no NaN


def _skew(scores: Tensor, valid: Tensor) -> Tensor:
    """(B, T, W) to diagonals (T + W − 1, B, W): out[d, b, u] = scores[b, d − u, u], else NEGATIVE."""
    _, T, W = scores.shape
    d = torch.arange(T + W - 1, device=scores.device)
    u = torch.arange(W, device=scores.device)
    t = d[:, None] - u[None, :]
    inside = (t >= 0) & (t < T)
    t = t.clamp(0, T - 1)
    picked = scores[:, t, u[None, :]].permute(1, 0, 2)
    keep = (valid[:, t, u[None, :]] & inside).permute(1, 0, 2)
    return torch.where(keep, picked.double(), NEGATIVE)


def _straighten(diagonals: Tensor, T: int) -> Tensor:
    """The inverse of `_skew`: (T + W − 1, B, W) to (B, T, W)."""
    W = diagonals.shape[2]
    t = torch.arange(T, device=diagonals.device)
    u = torch.arange(W, device=diagonals.device)
    return diagonals[t[:, None] + u[None, :], :, u[None, :]].permute(2, 0, 1)


def _masks(T: int, W: int, f_lengths: Tensor, label_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Which blank arcs and which label arcs exist, each (B, T, W)."""
    t = torch.arange(T, device=f_lengths.device)[None, :, None]
    u = torch.arange(W, device=f_lengths.device)[None, None, :]
    frames, labels = f_lengths[:, None, None], label_lengths[:, None, None]
    return (t < frames) & (u <= labels), (t < frames) & (u < labels)


def forward_scores(blank: Tensor, label: Tensor, f_lengths: Tensor, label_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log P(y|x) (B,), and α along diagonals (T + U, B, U + 1).

    Args:
        blank: log P(blank | t, u), (B, T, U + 1).
        label: log P(y_{u+1} | t, u), (B, T, U + 1); what stands at u ≥ label length is never read.
        f_lengths: Frames of each utterance (B,), at least 1.
        label_lengths: Labels of each utterance (B,).
    """
    _, T, W = blank.shape
    has_blank, has_label = _masks(T, W, f_lengths, label_lengths)
    blanks, labels = _skew(blank, has_blank), _skew(label, has_label)
    alpha = torch.full_like(blanks, NEGATIVE)
    alpha[0, :, 0] = 0.0
    for d in range(1, len(alpha)):
        stay, emit = alpha[d - 1] + blanks[d - 1], alpha[d - 1] + labels[d - 1]
        alpha[d, :, 0] = stay[:, 0]
        torch.logaddexp(stay[:, 1:], emit[:, :-1], out=alpha[d, :, 1:])
    alpha.clamp_(min=NEGATIVE)
    b = torch.arange(len(blank), device=blank.device)
    end = f_lengths - 1 + label_lengths
    return alpha[end, b, label_lengths] + blanks[end, b, label_lengths], alpha


def arc_posteriors(
    blank: Tensor, label: Tensor, alpha: Tensor, f_lengths: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Posterior probability of each blank arc and of each label arc, both (B, T, U + 1), 0 where none is."""
    _, T, W = blank.shape
    has_blank, has_label = _masks(T, W, f_lengths, label_lengths)
    blanks, labels = _skew(blank, has_blank), _skew(label, has_label)
    stay = torch.exp(alpha[:-1] + blanks[:-1] - alpha[1:])
    emit = torch.exp(alpha[:-1, :, :-1] + labels[:-1, :, :-1] - alpha[1:, :, 1:])
    last = torch.zeros_like(alpha)  # 1 at the node (T−1, U), whose blank arc leaves the lattice
    b = torch.arange(len(blank), device=blank.device)
    last[f_lengths - 1 + label_lengths, b, label_lengths] = 1.0
    node = last[-1].clone()
    blank_arcs, label_arcs = last, torch.zeros_like(alpha)
    for d in range(len(alpha) - 2, -1, -1):
        blank_arcs[d].addcmul_(node, stay[d])
        torch.mul(node[:, 1:], emit[d], out=label_arcs[d, :, :-1])
        torch.add(blank_arcs[d], label_arcs[d], out=node)
    return _straighten(blank_arcs, T), _straighten(label_arcs, T)
