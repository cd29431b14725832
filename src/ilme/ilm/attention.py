"""The internal LM of an attention decoder: the decoder without its context vector (Section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.models.aed import AED, Memory
from ilme.models.lstm_lm import log_softmax
from ilme.nest import State, cat, map_tensors
from ilme.packed import Format, PackedLinear, PackedLSTMStack
from ilme.tokens import Tokens

__all__ = ["AttentionInternalLM"]


class AttentionInternalLM:
    """log P(y_u | y_{<u}; θ_AED) = log softmax(W_d DecoderRNN(h_{u−1}, e_{u−1}) + b_d)   (Eqs. 31, 32), eos scored.

    The decoder state is its own: one that has never seen a context vector.

    Args:
        host: The attention decoder.
        acoustics: What stands in for the context vector: nothing (the paper's estimator) or a vector (E,) such as
            its mean over utterances (see `ilme.ilm.average`).
        format: None computes with the host's own products, in one pass with the host's step. A format of `ilme.packed`
            packs the decoder once more, for this scorer alone: beside a float32 host, "int8" takes a third of the
            time, and its error enters the fused score times μ only.
    """

    def __init__(self, host: AED, acoustics: Tensor | None = None, format: Format | None = None) -> None:
        self.host = host
        self.acoustics = acoustics
        self.own: tuple[PackedLSTMStack, PackedLinear] | None = None
        if format is not None:
            self.own = PackedLSTMStack(host.rnn, format), PackedLinear(host.output.weight, host.output.bias, format)  # type: ignore[arg-type]

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
        if self.own is None:
            h, state = self.host.decode(labels, self.acoustics, state)
            return log_softmax(self.host.output(h)), state
        rnn, output = self.own
        e = self.host.embedding(labels)
        h, state = rnn.step(e, state, None if self.acoustics is None else self.acoustics.expand_as(e))
        return log_softmax(output(h)), state

    def ride(
        self, labels: Tensor, state: State, internal: State, memory: Memory
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one: both decoders' rows go through each weight matrix together."""
        if self.own is not None:
            return self.host.step(labels, state, memory), self.score(labels, internal)
        host, n = self.host, len(labels)
        rnn, weights, context = state
        absent = torch.zeros_like(context) if self.acoustics is None else self.acoustics.expand_as(context)
        h, both = host.decode(labels.repeat(2), torch.cat([context, absent]), cat([rnn, internal]))
        weights, context = host.attend(weights, memory, h[:n])
        rows = log_softmax(host.output(h))
        own, internal = (map_tensors(lambda x, part=part: x[part], both) for part in (slice(n), slice(n, None)))
        return (rows[:n], (own, weights, context)), (rows[n:], internal)

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, self.tokens.eos]
