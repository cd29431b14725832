"""Training loss of the attention encoder-decoder: label-smoothed cross-entropy, optionally with CTC.

    loss = −Σ_{u=1..U+1} log P(y_u | x, y_{<u})  + w · CTC(y | x)

With scheduled sampling (Bengio et al. 2015) each label that the decoder reads is, at a given rate, one that
it drew itself at the step before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ilme.losses.attention import fused_energies_available, location_energies
from ilme.losses.cross_entropy import linear_cross_entropy
from ilme.models.aed import AED, LocationAttention, Memory

__all__ = ["aed_loss", "ctc_loss", "decoder_outputs"]


def aed_loss(
    model: AED,
    memory: Memory,
    labels: Tensor,
    label_lengths: Tensor,
    smoothing: float = 0.0,
    replace: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """Summed cross-entropy over the labels and the end of each sentence, a scalar.

    Args:
        model: The network.
        memory: What it attends to.
        labels: Ids (B, U), padded with any id.
        label_lengths: Labels of each utterance (B,).
        smoothing: Label smoothing.
        replace: Where the decoder reads its own draw in place of the label, (B, U) bool on the CPU; None:
        nowhere. recompute: Keep no activations of a decoder step, make them again in the backward pass.
    """
    h = decoder_outputs(model, memory, labels, replace, recompute)
    B, W = h.shape[:2]
    steps = torch.arange(W, device=labels.device)
    ends = steps == label_lengths[:, None]
    targets = nn.functional.pad(labels, (0, 1)).masked_fill(ends, model.tokens.eos or 0)
    keep = (steps <= label_lengths[:, None]).flatten()
    output = model.output
    return linear_cross_entropy(
        model.dropout(h).reshape(B * W, -1), output.weight, output.bias, targets.flatten(), smoothing, keep
    )


def ctc_loss(model: AED, memory: Memory, labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Summed CTC loss of the encoder's own output layer; an utterance with too few frames for its labels
    adds 0.

    CTC's blank is the id of <eos>, which no transcript holds.
    """
    if model.ctc is None:
        raise ValueError("this network has no CTC output layer: set model.ctc=true")
    frames = torch.isfinite(memory[2]).sum(1)
    with torch.autocast(memory[0].device.type, enabled=False):
        scores = model.ctc(memory[0].float()).log_softmax(-1).transpose(0, 1)
    return nn.functional.ctc_loss(
        scores,
        labels,
        frames,
        label_lengths,
        blank=model.tokens.eos or 0,
        reduction="sum",
        zero_infinity=True,
    )


def decoder_outputs(
    model: AED, memory: Memory, labels: Tensor, replace: Tensor | None = None, recompute: bool = False
) -> Tensor:
    """h_dec_1 … h_dec_{U+1} (B, U+1, hidden) for given labels (B, U), as the model's own start and step give
    them.

    Where `replace` says so the decoder reads a label drawn from its own distribution; only such steps pay for
    their output layer.
    """
    B = len(labels)
    h0, c0 = model.rnn.zero_state(B)
    hidden, cell = list(h0.unbind(1)), list(c0.unbind(1))
    weights, context = attend(model.attend, memory[2].softmax(-1), memory, hidden[-1])
    previous = torch.full((B,), model.sos, device=labels.device)
    outputs: list[Tensor] = []
    for u in range(labels.shape[1] + 1):
        if u > 0:
            previous = labels[:, u - 1]
            if replace is not None and bool(replace[:, u - 1].any()):
                drawn = _draw(model, outputs[-1])
                previous = torch.where(replace[:, u - 1].to(labels.device), drawn, previous)
        arguments = (model, memory, previous, weights, context, hidden, cell)
        if recompute:
            weights, context, hidden, cell = checkpoint(_step, *arguments, use_reentrant=False)
        else:
            weights, context, hidden, cell = _step(*arguments)
        outputs.append(hidden[-1])
    return torch.stack(outputs, 1)


def _step(
    model: AED,
    memory: Memory,
    previous: Tensor,
    weights: Tensor,
    context: Tensor,
    hidden: list[Tensor],
    cell: list[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """One label read: the LSTM cells, then the attention (Eqs. 5–7)."""
    x = model.dropout(model.embedding(previous) + context)
    lstm = model.rnn.lstm
    new_hidden, new_cell = [], []
    for layer in range(model.rnn.layers):
        parts = [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        x, c = torch.lstm_cell(x, (hidden[layer].to(x.dtype), cell[layer].to(x.dtype)), *parts)
        new_hidden.append(x)
        new_cell.append(c)
    weights, context = attend(model.attend, weights, memory, x)
    return weights, context, new_hidden, new_cell


def attend(attention: LocationAttention, previous: Tensor, memory: Memory, h: Tensor) -> tuple[Tensor, Tensor]:
    """The module's own forward for one sequence per utterance, with fused energies where they can run."""
    values, keys, padding = memory
    if attention.filters is None or attention.location is None or not fused_energies_available(keys.device):
        weights, context = attention(previous, memory, h)
        return weights, context
    moved = attention.filters(previous[:, None].to(keys.dtype)).transpose(1, 2)
    energy = location_energies(keys, attention.query(h), moved, attention.location.weight, attention.energy.weight[0])
    weights = (energy + padding).softmax(-1)
    return weights, torch.bmm(weights[:, None].to(values.dtype), values).squeeze(1)


@torch.no_grad()
def _draw(model: AED, h: Tensor) -> Tensor:
    """One label from P(· | x, y_{<u}) for each row of h, (B,)."""
    return torch.multinomial(model.output(h).float().softmax(-1), 1).squeeze(1)
