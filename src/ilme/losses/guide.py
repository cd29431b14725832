"""A guide for the attention of a decoder that does not know yet where to look.

An attention decoder learns nothing of the audio before its attention has found the label that comes next, and finds it
only by what it learns of the audio: most of a short training may pass in between. People speak at a nearly steady pace,
so labels spread evenly over the utterance lie about where they are said.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ilme.tokens import Tokens

__all__ = ["even_ends", "guide_loss", "unit_widths"]

NEAR = 0.04  # of the utterance, beside one frame: the standard deviation of what is near a place
LEAST = 1e-30  # of the attention: what is less counts as that


def unit_widths(tokens: Tokens) -> Tensor:
    """How long the units are likely to sound, by their letters: (V,)."""
    return torch.tensor([float(max(1, len(piece))) for piece in tokens.pieces])


def even_ends(widths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Where each label would end, from 0 to 1, were all of them spread evenly over the utterance: (B, U), U > 0.

    Args:
        widths: w, how long each unit is (V,), such as its letters.
        labels: Ids (B, U), padded with any id.
        label_lengths: Labels of each utterance (B,).
    """
    inside = torch.arange(labels.shape[1], device=labels.device) < label_lengths[:, None]
    ends = (widths[labels] * inside).cumsum(1)
    return ends / ends[:, -1:].clamp(min=1.0)


def guide_loss(attention: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor, widths: Tensor) -> Tensor:
    """How little of the attention lies near the label that comes next, summed, a scalar.

        −Σ_{u=0..U} log Σ_t a_{u,t} exp(−½ (((t + ½)/T − p_{u+1}) / s)²),    s = NEAR + 1/T

    p_{u+1} is the middle of y_{u+1}'s share of the utterance, p_{U+1} its end. The attention may be as narrow as it
    likes, and within what is near it is free to find the label's own frames.

    Args as for `even_ends`, and

        attention: a_0 … a_U (B, U+1, T), each row summing to 1 over the utterance's own frames.
        lengths: Frames of each utterance (B,).
    """
    if not labels.shape[1]:
        return attention.sum() * 0.0
    after = even_ends(widths, labels, label_lengths)
    middle = (pad(after[:, :-1], (1, 0)) + after) / 2
    labelled = torch.arange(attention.shape[1], device=labels.device) - label_lengths[:, None]  # 0: the sentence's end
    place = torch.where(labelled < 0, pad(middle, (0, 1)), 1.0)
    T = lengths[:, None, None].clamp(min=1)
    frames = torch.arange(attention.shape[2], device=labels.device) + 0.5
    away = (frames / T - place[..., None]) / (NEAR + 1 / T)
    near = (attention * torch.exp(-0.5 * away.square())).sum(-1)
    loss: Tensor = -(near.clamp(min=LEAST).log() * (labelled <= 0)).sum()
    return loss
