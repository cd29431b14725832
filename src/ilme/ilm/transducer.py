"""The internal LM of a transducer: the joint network without its acoustic term, the blank left out (Section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.protocols import Transducer
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["TransducerInternalLM"]


class TransducerInternalLM:
    """log P(y_u | y_{<u}; θ_RNNT) = log softmax(κ z_u without blank),  z_u = J(g_u)   (Eqs. 24–26, where κ = 1).

    Args:
        host: The transducer.
        acoustics: What stands in for f_t: nothing, bias included (the paper's estimator), or a vector (J,) such as
            its mean over utterances (see `ilme.ilm.average`) or one learned from text (see `ilme.ilm.learned_vector`).
        scale: κ.
    """

    def __init__(self, host: Transducer, acoustics: Tensor | None = None, scale: float = 1.0) -> None:
        self.host = host
        self.acoustics = acoustics
        self.scale = scale

    @property
    def tokens(self) -> Tokens:
        return self.host.tokens

    @property
    def capturable(self) -> bool:
        return getattr(self.host, "capturable", False)

    @property
    def device(self) -> torch.device:
        return self.host.device

    def start(self, n: int) -> tuple[Tensor, State]:
        g, state = self.host.start(n)
        return self.ride(g), state

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        g, state = self.host.predict(labels, state)
        return self.ride(g), state

    def ride(self, g: Tensor) -> Tensor:
        """Rows (n, V) from the language terms g (n, J) that the host's own search has already computed."""
        f = None if self.acoustics is None else self.acoustics.expand_as(g)
        logits = self.host.join(f, g) * self.scale
        logits[:, self.tokens.blank] = -torch.inf
        return log_softmax(logits)

    def finish(self, rows: Tensor) -> Tensor:
        """A transducer's sum runs to U (Eq. 26): it has no end of sentence to score."""
        return rows.new_zeros(len(rows))
