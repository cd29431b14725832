"""Transducers of `transformers`: an encoder, an LSTM over the labels, and a joint network that adds the two.

    f_t = W_e h_enc_t + b_e,    g_u = W_p LSTM(y_{≤ u}) + b_p,    z_{t,u} = W_j act(f_t + g_u) + b_j

Both projections, with their biases, are in the two terms, so J(g) without f_t is the paper's internal LM (Eqs. 24–26).
Where the joint network gives durations too (TDT), its first V logits are the labels' and the rest are theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["LSTMTransducer"]


class LSTMTransducer:
    """`start`, `predict` and `join` of `ilme.protocols.Transducer`, over `model.decoder` and `model.joint`."""

    model: Any
    tokens: Tokens
    device: torch.device
    dtype: torch.dtype

    @torch.no_grad()
    def start(self, n: int) -> tuple[Tensor, State]:
        lstm = self.model.decoder.lstm
        zeros = torch.zeros(n, lstm.num_layers, lstm.hidden_size, device=self.device, dtype=self.dtype)
        blank = torch.full((n,), int(self.tokens.blank or 0), device=self.device)
        return self.predict(blank, (zeros, zeros))

    @torch.no_grad()
    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        decoder = self.model.decoder
        inner = tuple(x.transpose(0, 1).contiguous() for x in state)  # layers first there, sequences first here
        h, new = decoder.lstm(decoder.embedding(labels)[:, None], inner)
        return decoder.decoder_projector(h[:, 0]), tuple(x.transpose(0, 1) for x in new)

    @torch.no_grad()
    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        head = self.model.joint.head
        V = len(self.tokens)
        return F.linear(self._joined(f, g), head.weight[:V], head.bias[:V])

    @torch.no_grad()
    def join_some(self, f: Tensor, g: Tensor, units: Tensor) -> Tensor:
        """Logits (n, m) of the units (m,), for f and g (n, J)."""
        head = self.model.joint.head
        return F.linear(self._joined(f, g), head.weight[units], head.bias[units])

    @torch.no_grad()
    def join_durations(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, V) of the labels, blank included, and (n, D) of the durations."""
        logits = self.model.joint.head(self._joined(f, g))
        return logits[:, : len(self.tokens)], logits[:, len(self.tokens) :]

    def _joined(self, f: Tensor | None, g: Tensor) -> Tensor:
        joined: Tensor = self.model.joint.activation(g if f is None else f + g)
        return joined

    def language_parameters(self) -> dict[str, Tensor]:
        """The weights that the internal LM uses, too: all but those that only audio passes through."""
        parts = {"decoder": self.model.decoder, "joint": self.model.joint}
        return {f"{name}.{n}": p for name, part in parts.items() for n, p in part.named_parameters()}
