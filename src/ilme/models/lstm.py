"""A stack of LSTM layers that runs over whole sequences when training and label by label when searching."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LSTMStack", "LSTMState", "start_as_identity", "start_deep"]

LSTMState = tuple[Tensor, Tensor]  # h and c, each (n, layers, hidden): the sequence first


@torch.no_grad()
def start_deep(lstm: nn.LSTM) -> None:
    """First weights with which a signal passes many layers: Glorot for inputs, orthogonal for recurrence, b_f = 1.

    Each layer of torch's own first weights lets about a quarter of the signal through: of layers on top of each other
    without normalisation, the sixth hears next to nothing.
    """
    for name, weight in lstm.named_parameters():
        gates = weight.chunk(4)  # input, forget, cell, output
        if name.startswith("bias"):
            weight.zero_()
            if name.startswith("bias_ih"):
                gates[1].fill_(1.0)
            continue
        for gate in gates:
            nn.init.xavier_uniform_(gate) if name.startswith("weight_ih") else nn.init.orthogonal_(gate)


@torch.no_grad()
def start_as_identity(lstm: nn.LSTM, first: int = 0) -> None:
    """First weights with which layers from `first` on pass on about what they read, so that a deep stack learns as fast
    as a shallow one: input and output gates open, forget gates nearly closed, W_g = 1.1 I, the rest a tenth of usual.

        h_t = σ(1.5) tanh(c_t),    c_t = σ(−1) c_{t−1} + σ(1.5) tanh(1.1 x_t),    h ≈ x for small and steady x
    """
    for name, weight in lstm.named_parameters():
        if int(name.split("_l")[1].split("_")[0]) < first:
            continue
        i, f, g, o = weight.chunk(4)
        if name.startswith("bias"):
            weight.zero_()
            if name.startswith("bias_ih"):
                i.fill_(1.5), f.fill_(-1.0), o.fill_(1.5)
            continue
        for gate in (i, f, g, o):
            nn.init.xavier_uniform_(gate, 0.1) if name.startswith("weight_ih") else nn.init.orthogonal_(gate, 0.1)
        if name.startswith("weight_ih"):
            g += 1.1 * torch.eye(*g.shape, device=g.device)


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
