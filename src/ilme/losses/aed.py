"""Training loss of the attention encoder-decoder: label-smoothed cross-entropy.

    loss = −Σ_{u=1..U+1} log P(y_u | x, y_{<u})

With scheduled sampling (Bengio et al. 2015) each label that the decoder reads is, at a given rate, one that
it drew itself at the step before. With forgetting it reads, at a given rate, nothing in place of a label: a large
decoder that trains on little text for long learns its sentences by heart, and then listens less.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ilme.losses.cross_entropy import linear_cross_entropy, with_ends
from ilme.models.aed import AED, Memory
from ilme.models.energies import attention_energies, weights_and_context
from ilme.runtime.cuda import kernels_run_on

__all__ = ["aed_loss", "decoder_outputs", "outputs_loss"]


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
        replace: Where the decoder reads its own draw in place of the label, (B, U) bool on the CPU; None: nowhere.
        recompute: Keep no activations of a decoder step, make them again in the backward pass.
    """
    return outputs_loss(
        model, decoder_outputs(model, memory, labels, replace, recompute)[0], labels, label_lengths, smoothing
    )


def outputs_loss(model: AED, h: Tensor, labels: Tensor, label_lengths: Tensor, smoothing: float = 0.0) -> Tensor:
    """The same from h_dec_1 … h_dec_{U+1} (B, U+1, hidden)."""
    targets, counts = with_ends(labels, label_lengths, model.tokens.eos or 0)
    x, weight, bias = model.output_terms(model.beside_lm(model.dropout(h), labels))
    return linear_cross_entropy(x.flatten(0, 1), weight, bias, targets.flatten(), smoothing, counts.flatten())


def decoder_outputs(
    model: AED,
    memory: Memory,
    labels: Tensor,
    replace: Tensor | None = None,
    recompute: bool = False,
    forget: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """h_dec_1 … h_dec_{U+1} (B, U+1, hidden) for given labels (B, U), as the model's own start and step give them.

    Beside them a_0 … a_U (B, U+1, T) in float32: what was attended to before each of these was made.

    Where `replace` says so the decoder reads a label drawn from its own distribution; only such steps pay for
    their output layer. Labels are forgotten at random, at the rate `forget`; the start of the sentence is not.
    """
    device = labels.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else memory[1].dtype
    with torch.autocast(device, enabled=False):
        return _Loop(model, memory, dtype)(labels, replace, recompute, forget)


class _Loop:
    """The decoder over one batch, its weights brought to the number format of the loop once.

    The device waits for the host in this loop, so what counts is how few operations a label takes.
    """

    def __init__(self, model: AED, memory: Memory, dtype: torch.dtype) -> None:
        attention, lstm = model.attend, model.rnn.lstm
        self.model, self.dtype = model, dtype
        self.values, self.keys, self.padding = memory[0].to(dtype), memory[1].to(dtype), memory[2].float()
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.cells = [[getattr(lstm, f"{n}_l{i}").to(dtype) for n in names] for i in range(model.rnn.layers)]
        self.query, self.energy = attention.query.weight.to(dtype), attention.energy.weight[0].to(dtype)
        self.filters = None if attention.filters is None else attention.filters.weight.to(dtype)
        self.location = None if attention.location is None else attention.location.weight.to(dtype)
        self.fused = kernels_run_on(memory[1].device)

    def __call__(self, labels: Tensor, replace: Tensor | None, recompute: bool, forget: float) -> tuple[Tensor, Tensor]:
        model, B = self.model, len(labels)
        zeros = torch.zeros(B, model.rnn.hidden, device=labels.device, dtype=self.dtype)
        hidden, cell = [zeros] * model.rnn.layers, [zeros] * model.rnn.layers
        weights, context = self.attend(model.attend.before(self.padding), hidden[-1])
        previous = nn.functional.pad(labels, (1, 0), value=model.sos)
        e = model.embedding(previous)
        if forget:
            kept = torch.rand(labels.shape, device=labels.device) >= forget
            e = e * nn.functional.pad(kept, (1, 0), value=True)[..., None]
        embedded = e.to(self.dtype).unbind(1)
        outputs: list[Tensor] = []
        attended: list[Tensor] = []
        for u, e in enumerate(embedded):
            if u > 0 and replace is not None and bool(replace[:, u - 1].any()):
                drawn = model.embedding(self.draw(outputs[-1])).to(self.dtype)
                e = torch.where(replace[:, u - 1, None].to(labels.device), drawn, e)
            attended.append(weights)
            if recompute:
                weights, context, hidden, cell = checkpoint(
                    self.step, e, weights, context, hidden, cell, use_reentrant=False
                )
            else:
                weights, context, hidden, cell = self.step(e, weights, context, hidden, cell)
            outputs.append(hidden[-1])
        return torch.stack(outputs, 1), torch.stack(attended, 1)

    def step(
        self, e: Tensor, weights: Tensor, context: Tensor, hidden: list[Tensor], cell: list[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """One label read: the LSTM cells, then the attention (Eqs. 5–7)."""
        x = self.model.dropout(e + context)
        new_hidden, new_cell = [], []
        for parts, h, c in zip(self.cells, hidden, cell, strict=True):
            x, c = torch.lstm_cell(x, (h, c), *parts)
            new_hidden.append(x)
            new_cell.append(c)
        weights, context = self.attend(weights, x)
        return weights, context, new_hidden, new_cell

    def attend(self, previous: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """`LocationAttention` in the format of the loop: weights (B, T) in float32 and the context (B, E)."""
        query = nn.functional.linear(h, self.query)
        energy = attention_energies(
            self.keys, query, previous, self.filters, self.location, self.energy, fused=self.fused
        )
        return weights_and_context(energy, self.padding, self.values)

    @torch.no_grad()
    def draw(self, h: Tensor) -> Tensor:
        """One label from P(· | x, y_{<u}) for each row of h, (B,)."""
        output = self.model.output
        logits = nn.functional.linear(h, output.weight.to(self.dtype), output.bias.to(self.dtype))
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(1)
