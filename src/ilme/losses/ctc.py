"""CTC on an encoder's outputs: the auxiliary loss that makes a network listen from the start.

An attention decoder finds no alignment, and a transducer may learn text alone, when the audio is hard and the text is
easy. CTC sees no earlier labels, so nothing but the audio lowers it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ctc_loss"]


def ctc_loss(layer: nn.Module, h: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor, blank: int) -> Tensor:
    """Summed loss, a scalar; an utterance with too few frames for its labels adds 0.

    Args:
        layer: The output layer, E to V.
        h: Encoder outputs (B, T, E).
        lengths: Frames of each utterance (B,).
        labels: Ids (B, U), padded with any id.
        label_lengths: Labels of each utterance (B,).
        blank: CTC's blank: an id that no transcript holds.
    """
    with torch.autocast(h.device.type, enabled=False):
        scores = layer(h.float()).log_softmax(-1).transpose(0, 1)
    return nn.functional.ctc_loss(
        scores, labels, lengths, label_lengths, blank=blank, reduction="sum", zero_infinity=True
    )
