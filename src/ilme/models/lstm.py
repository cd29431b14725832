"""A stack of LSTM layers that runs over whole sequences when training and label by label when searching."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["ALIGNED", "LSTMStack", "LSTMState", "padded_weights", "start_deep"]

ALIGNED = 8  # tensor cores read 16-bit matrices in groups of that

LSTMState = tuple[Tensor, Tensor]  # h and c, each (n, layers, hidden): the sequence first


@torch.no_grad()
def start_deep(lstm: nn.LSTM, shallow: int) -> None:
    """First weights with which a deep stack learns as soon as a shallow one.

    The first `shallow` layers start with Glorot's weights for inputs, orthogonal ones for recurrence, and b_f = 1. The
    others pass on about what they read: input and output gates open, forget gates nearly closed, W_g = 1.1 I, beside a
    tenth of the usual weights,

        h_t = σ(1.5) tanh(c_t),    c_t = σ(−1) c_{t−1} + σ(1.5) tanh(1.1 x_t),    h ≈ x for small and steady x

    Each layer of torch's own first weights lets about a quarter of the signal through: without normalisation between
    them, the sixth hears next to nothing.
    """
    for name, weight in lstm.named_parameters():  # weight_ih_l0, bias_hh_l1_reverse and so on
        passes_on = int(name.split("_")[2][1:]) >= shallow
        gates = dict(zip("ifgo", weight.chunk(4), strict=True))
        if name.startswith("weight"):
            for gate in gates.values():
                first = nn.init.xavier_uniform_ if name.startswith("weight_ih") else nn.init.orthogonal_
                first(gate, 0.1 if passes_on else 1.0)
            if passes_on and name.startswith("weight_ih"):
                gates["g"] += 1.1 * torch.eye(*gates["g"].shape, device=weight.device)
            continue
        weight.zero_()
        if name.startswith("bias_ih"):
            for gate_name, value in {"i": 1.5, "f": -1.0, "o": 1.5}.items() if passes_on else [("f", 1.0)]:
                gates[gate_name].fill_(value)


def padded_weights(lstm: nn.LSTM, suffix: str = "") -> list[Tensor]:
    """Weights of one direction of a single layer, padded with zeros to widths that are aligned.

    A unit whose weights are all zero stays zero: c = σ(0) c + σ(0) tanh(0) = 0 from c = 0, and h = σ(0) tanh(0) = 0.
    """
    H, D = lstm.hidden_size, lstm.input_size
    more, more_in = -H % ALIGNED, -D % ALIGNED
    ih, hh = getattr(lstm, f"weight_ih_l0{suffix}"), getattr(lstm, f"weight_hh_l0{suffix}")
    if not more and not more_in:
        weights = [ih, hh]
    else:
        weights = [
            pad(ih.view(4, H, D), (0, more_in, 0, more)).flatten(0, 1),
            pad(hh.view(4, H, H), (0, more, 0, more)).flatten(0, 1),
        ]
    if lstm.bias:
        biases = [getattr(lstm, f"{name}_l0{suffix}") for name in ("bias_ih", "bias_hh")]
        weights += [pad(bias.view(4, H), (0, more)).flatten() for bias in biases] if more else biases
    return weights


class LSTMStack(nn.Module):
    """`forward` is cuDNN's fused pass over time; `step` advances n independent sequences by one input."""

    def __init__(self, inputs: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inputs, self.hidden, self.layers = inputs, hidden, layers
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True, dropout=between)

    def forward(self, x: Tensor) -> Tensor:
        """(n, U, inputs) to the top layer's outputs (n, U, hidden), from the zero state."""
        return self.lstm(x)[0]  # type: ignore[no-any-return]

    def zero_state(self, n: int) -> LSTMState:
        weight = next(self.lstm.parameters())
        zeros = torch.zeros(n, self.layers, self.hidden, device=weight.device, dtype=weight.dtype)
        return zeros, zeros

    def step(self, x: Tensor, state: LSTMState, carried: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """One input x, or x + carried, (n, inputs): the top layer's output (n, hidden), and the new state."""
        h, c = state
        x = x if carried is None else x + carried
        new_h, new_c = [], []
        for layer in range(self.layers):
            weights = [
                getattr(self.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            x, cell = torch.lstm_cell(x, (h[:, layer], c[:, layer]), *weights)
            new_h.append(x)
            new_c.append(cell)
        return x, (torch.stack(new_h, 1), torch.stack(new_c, 1))
