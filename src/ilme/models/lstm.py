"""A stack of LSTM layers that runs over whole sequences when training and label by label when searching."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LSTMStack", "LSTMState"]

LSTMState = tuple[Tensor, Tensor]  # h and c, each (n, layers, hidden): the sequence first


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
