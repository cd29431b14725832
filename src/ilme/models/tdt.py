"""An RNN-T that also says how many frames to go on by: a token-and-duration transducer (TDT, Xu et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ilme.models.rnnt import RNNT, RNNTConfig
from ilme.tokens import Tokens

__all__ = ["TDT", "TDT_DURATIONS", "transducer_network"]

TDT_DURATIONS = (0, 1, 2, 3, 4)  # frames, as Parakeet's


class TDT(RNNT):
    """P(v, d | x, y) = softmax(W_j h + b_j)_v · softmax(W_d h + b_d)_d; implements `ilme.protocols.DurationTransducer`.

    h = tanh(f_t + g_u) is the RNN-T's, and so are its labels, its files and its internal LM.
    """

    def __init__(self, config: RNNTConfig, tokens: Tokens) -> None:
        super().__init__(config, tokens)
        self.durations = config.durations
        self.duration_output = nn.Linear(config.joint, len(config.durations))

    def join_durations(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the labels (n, V) and of the durations (n, D)."""
        h = torch.tanh(f + g)
        return self.output(h), self.duration_output(h)

    def components(self) -> dict[str, nn.Module]:
        return {**super().components(), "durations": self.duration_output}

    def language_parameters(self) -> dict[str, nn.Parameter]:
        found = super().language_parameters()
        return {name: p for name, p in found.items() if not name.startswith("duration_output.")}


def transducer_network(config: RNNTConfig, tokens: Tokens) -> RNNT:
    """A TDT where the config has durations, else an RNN-T."""
    return TDT(config, tokens) if config.durations else RNNT(config, tokens)
