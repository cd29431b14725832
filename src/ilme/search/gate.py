"""Deciding that a frame is blank before touching the vocabulary.

Most frames of an utterance are blank for every hypothesis, yet log P(blank) needs the normaliser over all V units.
The gate estimates it from few: once per utterance it computes all units with the empty sequence's g_0, and keeps for
each frame the M units that the audio makes likely, S_t, and the mass of the others, r_t. For any other hypothesis

    log P(blank | t, y) ≈ z_blank − log(Σ_{v ∈ S_t ∪ {blank}} exp z_v + exp r_t),   z = J(f_t + g_y) on S_t only.

Where that is above −threshold, the estimate stands for the exact value and no label is tried; elsewhere the whole
vocabulary is computed as without a gate. M + 1 output units replace V.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import Transducer
from ilme.runtime.numerics import log_softmax

__all__ = ["BlankGate"]

CHUNK = 256  # frames whose whole vocabulary is computed at once


class BlankGate:
    """Estimates log P(blank) of the frames of one chunk.

    Args:
        model: A transducer that can compute some of its output units (`join_some`).
        f: Acoustic terms (B, T, J).
        threshold: A frame is blank for a hypothesis when its log P(blank) is estimated above −threshold.
        shortlist: M, likely units kept for each frame.
    """

    def __init__(self, model: Transducer, f: Tensor, threshold: float, shortlist: int) -> None:
        if not hasattr(model, "join_some"):
            raise BadInputError(f"blank_gate needs a model with join_some; {type(model).__name__} has none")
        self.model, self.threshold = model, threshold
        blank = model.tokens.blank
        B, T, J = f.shape
        M = min(shortlist, len(model.tokens) - 1)
        g, _ = model.start(1)
        units, rest = [], []
        for part in torch.split(f.reshape(B * T, J), CHUNK):
            z = model.join(part, g.expand(len(part), -1))
            z = z.to(torch.promote_types(z.dtype, torch.float32)).clone()
            z[:, blank] = -torch.inf
            likely = z.topk(M, dim=1).indices
            rest.append(z.scatter_(1, likely, -torch.inf).logsumexp(1))
            units.append(torch.nn.functional.pad(likely, (1, 0), value=int(blank or 0)))
        self.units = torch.cat(units).view(B, T, M + 1)
        self.rest = torch.cat(rest).view(B, T)

    def log_blank(self, t: int, utterances: Tensor, f: Tensor, g: Tensor) -> Tensor:
        """Estimates (n,) for n sequences at frame t, of the given utterances (n,) in ascending order."""
        found, counts = torch.unique_consecutive(utterances, return_counts=True)
        sizes = counts.tolist()
        parts = [
            self.model.join_some(f_b, g_b, self.units[b, t])
            for b, f_b, g_b in zip(found.tolist(), torch.split(f, sizes), torch.split(g, sizes), strict=True)
        ]
        rest = self.rest[utterances, t][:, None]
        z = torch.cat([torch.cat(parts).to(rest.dtype), rest], 1)
        return log_softmax(z)[:, 0]
