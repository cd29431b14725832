"""Hybrid CTC and attention: one pass whose labels are scored by the decoder and by the CTC layer on the same encoder.

    log P(v | x, y) = (1 − w) log P_att(v | x, y) + w (log ψ(y v) − log ψ(y))          (Watanabe et al. 2017)

ψ is CTC's probability of a prefix (`ilme.search.ctc_prefix`); for the end it is log P_CTC(y | x) − log ψ(y), so that
the sum over a sequence and its end is (1 − w) log P_att(y | x) + w log P_CTC(y | x). The decoder alone may skip or
repeat what it has heard; CTC cannot. To a search it is one attention decoder: fusion, guards and ends are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import AttentionDecoder, CTCBeside
from ilme.runtime.state import State
from ilme.search.ctc_prefix import CTCPrefixes
from ilme.tokens import Tokens

__all__ = ["JointDecoder", "JointMemory"]


class JointMemory(NamedTuple):
    """What the decoder attends to, and what CTC says of each frame."""

    own: State
    frames: State


class JointDecoder:
    """Implements `ilme.protocols.AttentionDecoder` over what `prepared` makes of the host's memory.

    Args:
        host: The attention decoder, with a CTC layer on its encoder.
        weight: w, from 0 (the decoder alone) to 1 (CTC alone).
    """

    def __init__(self, host: AttentionDecoder, weight: float) -> None:
        if not isinstance(host, CTCBeside) or not host.has_ctc:
            raise BadInputError(
                "ctc_weight needs a CTC layer beside the decoder, and this model has none: train an AED with "
                "model.ctc=true and a weight aed.ctc (bundles leave the layer out)"
            )
        self.host, self.weight = host, weight
        self._scores = host.ctc_scores

    @property
    def tokens(self) -> Tokens:
        return self.host.tokens

    @property
    def device(self) -> torch.device:
        return self.host.device

    def encode(self, features: Tensor, lengths: Tensor) -> JointMemory:
        return self.prepared(self.host.encode(features, lengths))

    def prepared(self, memory: State) -> JointMemory:
        rows, lengths = self._scores(memory)
        return JointMemory(memory, CTCPrefixes(rows, lengths, self.end).tables)

    @property
    def end(self) -> int:
        """The id of the end, which is CTC's blank as well: neither is ever a label."""
        return int(self.host.tokens.eos or 0)

    def start(self, memory: State) -> tuple[Tensor, State]:
        rows, state = self.host.start(memory.own)
        heard, prefixes = CTCPrefixes.of(memory.frames, self.end).start()
        return self._both(rows, heard), (state, prefixes)

    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        rows, own = self.host.step(labels, state[0], memory.own)
        heard, prefixes = CTCPrefixes.of(memory.frames, self.end).step(labels, state[1])
        return self._both(rows, heard), (own, prefixes)

    def without_audio(self) -> State:
        return self.host.without_audio()

    def _both(self, rows: Tensor, heard: Tensor) -> Tensor:
        return (1 - self.weight) * rows + self.weight * heard.to(rows.dtype)
