"""CTC on an encoder's outputs: the auxiliary loss that makes a network listen from the start, and what comes before it.

An attention decoder finds no alignment, and a transducer may learn text alone, when the audio is hard and the text is
easy. CTC sees no earlier labels, so nothing but the audio lowers it. A deep encoder with thousands of units may wait
long before CTC, too, finds the first alignment: a flat start gives it a rough one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ilme.tokens import Tokens

__all__ = ["ctc_logits", "ctc_loss", "flat_start_loss", "unit_widths"]


def ctc_loss(layer: nn.Linear, h: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor, blank: int) -> Tensor:
    """Summed loss, a scalar; an utterance with too few frames for its labels adds 0.

    Args:
        layer: The output layer, E to V.
        h: Encoder outputs (B, T, E).
        lengths: Frames of each utterance (B,).
        labels: Ids (B, U), padded with any id.
        label_lengths: Labels of each utterance (B,).
        blank: CTC's blank: an id that no transcript holds.
    """
    scores = ctc_logits(layer, h).log_softmax(-1).transpose(0, 1)
    return nn.functional.ctc_loss(
        scores, labels, lengths, label_lengths, blank=blank, reduction="sum", zero_infinity=True
    )


def ctc_logits(layer: nn.Linear, h: Tensor) -> Tensor:
    """W h + b in float32 (B, T, V).

    Under mixed precision the product is float16's, eight times finer than bfloat16: its numbers are small, and in
    float32 it was a tenth of a training step at the paper's size (docs/results/data/training-aed-profile.json).
    """
    device = h.device.type
    dtype = torch.float16 if torch.is_autocast_enabled(device) else h.dtype
    with torch.autocast(device, enabled=False):
        logits = nn.functional.linear(h.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
    return logits.to(torch.promote_types(dtype, torch.float32))


def unit_widths(tokens: Tokens) -> Tensor:
    """How long the units are likely to sound, by their letters: (V,)."""
    return torch.tensor([float(max(1, len(piece))) for piece in tokens.pieces])


def flat_start_loss(
    layer: nn.Linear,
    h: Tensor,
    lengths: Tensor,
    labels: Tensor,
    label_lengths: Tensor,
    blank: int,
    widths: Tensor,
    late: bool = False,
) -> Tensor:
    """Cross-entropy of each frame with the label that falls on it, were the labels spread evenly over the utterance.

        −Σ_t r log P(y_{u(t)} | h_t, not ∅),    r = U/T,    u(t): the label at (t + ½)/T of Σ_u w(y_u)
        −Σ_t (1 − r) log P(∅ | h_t) + r log P(not ∅ | h_t),    for the blank's own weights alone

    Summed, a scalar. Blanks come to be as frequent as CTC needs them, so that CTC can go on from here. They must not
    move the encoder: how fast somebody speaks is learnt sooner than what is said, and then CTC knows no labels.

    Args as for `ctc_loss`, and

        widths: w, how long each unit is (V,), such as its letters.
        late: Spread them over what follows one label's time: an encoder that hears no future has then heard them.
    """
    B, T, _ = h.shape
    if not labels.shape[1]:
        return h.sum() * 0.0
    ends = _even_ends(widths, labels, label_lengths)
    frames = torch.arange(T, device=h.device).expand(B, T)
    place = (frames + 0.5) / lengths[:, None].clamp(min=1)
    if late:
        delay = 1.0 / (label_lengths[:, None] + 1)
        place = (place - delay) / (1 - delay)
    falls = torch.searchsorted(ends.contiguous(), place.clamp(0.0, 1.0).contiguous(), right=True)
    target = labels.gather(1, torch.minimum(falls, (label_lengths[:, None] - 1).clamp(min=0)))
    share = (label_lengths / lengths.clamp(min=1)).clamp(max=1.0)[:, None]
    scores = ctc_logits(layer, h)
    with torch.autocast(h.device.type, enabled=False):
        own = nn.functional.linear(h.detach().float(), layer.weight[blank][None], layer.bias[blank][None])[..., 0]
    all_labels = scores.index_fill(2, torch.tensor([blank], device=h.device), -torch.inf).logsumexp(-1)
    chosen = share * (all_labels - scores.gather(2, target[..., None])[..., 0])
    odds = own - all_labels.detach()
    silent = (1 - share) * nn.functional.softplus(-odds) + share * nn.functional.softplus(odds)
    losses: Tensor = (chosen + silent) * (frames < lengths[:, None])
    return losses.sum()


def _even_ends(widths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Where each label would end, from 0 to 1, were all of them spread evenly over the utterance: (B, U), U > 0."""
    inside = torch.arange(labels.shape[1], device=labels.device) < label_lengths[:, None]
    ends = (widths[labels] * inside).cumsum(1)
    return ends / ends[:, -1:].clamp(min=1.0)
