"""LSTM layers whose width is no multiple of 8, run at the next width that is: the same numbers, on the fast kernels.

Tensor cores read 16-bit matrices in groups of 8. A width of 780, as the paper's, misses that and falls back to slow
products. So weights are padded with zeros on the way in, and the padded outputs dropped on the way out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence

from ilme.models.lstm import ALIGNED, padded_weights

__all__ = ["align_lstms", "padded_lstm"]


def align_lstms(model: nn.Module) -> int:
    """Makes every single-layer LSTM of an odd width run padded; how many there are."""
    changed = 0
    for module in model.modules():
        if not isinstance(module, nn.LSTM) or module.num_layers > 1 or module.proj_size or not module.batch_first:
            continue
        if module.hidden_size % ALIGNED or module.input_size % ALIGNED:
            module.forward = _Padded(module)  # type: ignore[assignment]
            changed += 1
    return changed


class _Padded:
    """Stands in for the forward method of an LSTM."""

    def __init__(self, lstm: nn.LSTM) -> None:
        self._lstm = lstm

    def __call__(self, x: Any, hx: Any = None) -> Any:
        if hx is not None:
            return nn.LSTM.forward(self._lstm, x, hx)
        return padded_lstm(self._lstm, x)


def padded_lstm(lstm: nn.LSTM, x: Tensor | PackedSequence) -> tuple[Any, tuple[Tensor, Tensor]]:
    """What `lstm(x)` gives, for one layer that starts from zero."""
    H, D = lstm.hidden_size, lstm.input_size
    more, more_in = -H % ALIGNED, -D % ALIGNED
    directions = 2 if lstm.bidirectional else 1
    weights = [w for suffix in ("", "_reverse")[:directions] for w in padded_weights(lstm, suffix)]
    packed = isinstance(x, PackedSequence)
    data = x.data if isinstance(x, PackedSequence) else x
    rows = int(x.batch_sizes[0]) if isinstance(x, PackedSequence) else len(data)
    zeros = torch.zeros(directions, rows, H + more, device=data.device, dtype=data.dtype)
    data = pad(data, (0, more_in))
    common = (weights, lstm.bias, 1, 0.0, lstm.training, lstm.bidirectional)
    if isinstance(x, PackedSequence):
        out, h, c = torch._VF.lstm(data, x.batch_sizes, (zeros, zeros), *common)
    else:
        out, h, c = torch._VF.lstm(data, (zeros, zeros), *common, True)
    out = out.view(*out.shape[:-1], directions, H + more)[..., :H].flatten(-2)
    h, c = h[..., :H], c[..., :H]
    if packed:
        order = x.unsorted_indices  # type: ignore[union-attr]
        if order is not None:
            h, c = h.index_select(1, order), c.index_select(1, order)
        return PackedSequence(out, x.batch_sizes, x.sorted_indices, order), (h, c)  # type: ignore[union-attr]
    return out, (h, c)
