"""The internal LM of an attention decoder: the decoder without its context vector (Section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.models.aed import AED, Memory
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State, cat, map_tensors
from ilme.tokens import Tokens

__all__ = ["AttentionInternalLM"]


class AttentionInternalLM:
    """log P(y_u | y_{<u}; θ_AED) = log softmax κ(W_d DecoderRNN(h_{u−1}, e_{u−1}) + b_d)   (Eqs. 31, 32), eos scored.

    κ is 1 in the paper. The decoder state is its own: one that has never seen a context vector.

    Args:
        host: The attention decoder.
        acoustics: What stands in for the context vector: nothing (the paper's estimator) or a vector (E,) such as
            its mean over utterances (see `ilme.ilm.average`) or one learned from text (see `ilme.ilm.learned_vector`).
        scale: κ.
    """

    def __init__(self, host: AED, acoustics: Tensor | None = None, scale: float = 1.0) -> None:
        self.host = host
        self.acoustics = acoustics
        self.scale = scale

    @property
    def tokens(self) -> Tokens:
        return self.host.tokens

    @property
    def device(self) -> torch.device:
        return self.host.device

    def start(self, n: int) -> tuple[Tensor, State]:
        sos = torch.full((n,), self.host.sos, device=self.device)
        return self.score(sos, self.host.rnn.zero_state(n))

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        context = None if self.acoustics is None else self.acoustics.expand(len(labels), -1)
        h, state = self.host.decode(labels, context, state)
        logits = self.host.output(h)
        return log_softmax(logits if self.scale == 1 else logits * self.scale), state

    def ride(
        self, labels: Tensor, state: State, internal: State, memory: Memory
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one: both decoders' rows go through each weight matrix together."""
        host, n = self.host, len(labels)
        rnn, weights, context = state
        absent = torch.zeros_like(context) if self.acoustics is None else self.acoustics.expand_as(context)
        h, both = host.decode(labels.repeat(2), torch.cat([context, absent]), cat([rnn, internal]))
        weights, context = host.attend(weights, memory, h[:n])
        logits = host.output(h)
        if self.scale != 1:
            logits[n:] *= self.scale
        rows = log_softmax(logits)
        own, internal = (map_tensors(lambda x, part=part: x[part], both) for part in (slice(n), slice(n, None)))
        return (rows[:n], (own, weights, context)), (rows[n:], internal)

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, self.tokens.eos]
