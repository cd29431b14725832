"""A guide for the attention of a decoder that does not know yet where to look.

An attention decoder learns nothing of the audio before its attention has found the label that comes next, and finds it
only by what it learns of the audio: most of a short training may pass in between. CTC learns sooner where the labels
are, and can show it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["ctc_places", "guide_loss"]

NEAR = 1.0  # frames: the standard deviation of the attention that the guide asks for
LEAST = 1e-30  # of the attention: what is less counts as that


@torch.no_grad()
def ctc_places(scores: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor, blank: int) -> Tensor:
    """The frame of each label (B, U) on CTC's best path, where each has one frame, as it has once CTC has learnt.

        t_1 < … < t_U that maximise   Σ_u s_u(t_u),    s_u(t) = log P_CTC(y_u | t) − log P_CTC(∅ | t)
        D_u(t) = max_{t' ≤ t} D_{u−1}(t' − 1) + s_u(t'),    D_0 = 0

    Args:
        scores: log P_CTC, or logits (B, T, V).
        lengths: Frames of each utterance (B,).
        labels: Ids (B, U), padded with any id.
        label_lengths: Labels of each utterance (B,); where they outnumber the frames the places mean nothing.
        blank: CTC's blank.
    """
    (B, T, _), U = scores.shape, labels.shape[1]
    outside = torch.arange(T, device=scores.device) >= lengths[:, None]
    odds = scores.gather(2, labels[:, None].expand(B, T, U)) - scores[..., blank, None]
    odds = odds.float().masked_fill(outside[..., None], -torch.inf)
    best, origins = odds.new_zeros(B, T), []
    for u in range(U):
        before = pad(best[:, :-1], (1, 0), value=-torch.inf if u else 0.0)
        best, origin = (before + odds[..., u]).cummax(1)
        origins.append(origin)
    places = torch.zeros_like(labels)
    last = torch.full_like(label_lengths, T - 1)
    for u in reversed(range(U)):
        places[:, u] = origins[u].gather(1, last[:, None])[:, 0]
        last = torch.where(u < label_lengths, (places[:, u] - 1).clamp(min=0), last)
    return places


def guide_loss(attention: Tensor, places: Tensor, lengths: Tensor, label_lengths: Tensor) -> Tensor:
    """Cross-entropy of the attention with a narrow bell over the label that comes next, summed, a scalar.

        −Σ_{u=0..U} Σ_t g_{u,t} log a_{u,t},    g_{u,t} ∝ exp(−½ ((t − t_{u+1}) / NEAR)²)

    t_{u+1} is the frame of y_{u+1}, t_{U+1} the last one. Its gradient asks for the right frames however far from them
    the attention is.

    Args:
        attention: a_0 … a_U (B, U+1, T), each row summing to 1 over the utterance's own frames.
        places: The frame of each label (B, U).
        lengths: Frames of each utterance (B,).
        label_lengths: Labels of each utterance (B,).
    """
    frames = torch.arange(attention.shape[2], device=lengths.device)
    labelled = torch.arange(attention.shape[1], device=lengths.device) - label_lengths[:, None]  # 0: the sentence's end
    last = (lengths[:, None] - 1).clamp(min=0)
    place = torch.where(labelled < 0, pad(places, (0, 1)), last)
    bell = -0.5 * ((frames - place[..., None]) / NEAR).square()
    wanted = bell.masked_fill((frames > last)[:, None], -torch.inf).softmax(-1)
    loss: Tensor = -((wanted * attention.clamp(min=LEAST).log()).sum(-1) * (labelled <= 0)).sum()
    return loss
