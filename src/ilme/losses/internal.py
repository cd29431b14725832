"""The loss of a network's internal LM, for training it beside the network (ILMT, Meng et al. 2021).

    L = L_E2E + α L_ILM,   L_ILM = −Σ_u log P(y_u | y_{<u}; θ)     with the acoustics removed as in the internal LM

    RNN-T: P = softmax(J(g_u) without blank); prediction network, its head and the output layer learn from it
    AED:   P = softmax(W_d DecoderRNN(h_{u−1}, e_{u−1}) + b_d), the end included; embedding, decoder and output layer do

A network that was only trained to listen was never asked what it expects without audio; one trained so has a language
model inside that is one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ilme.losses.aed import outputs_loss
from ilme.losses.cross_entropy import linear_cross_entropy
from ilme.models.aed import AED
from ilme.models.rnnt import RNNT

__all__ = ["attention_internal_loss", "transducer_internal_loss"]

NEVER = -1e4  # logit of the blank: its probability is 0 in every number format, and 16 bits hold it


def transducer_internal_loss(model: RNNT, g: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Summed over the labels: a scalar from g_0 … g_U (B, U+1, J), labels (B, U) and their lengths (B,)."""
    inside = torch.arange(labels.shape[1], device=labels.device) < label_lengths[:, None]
    output = model.output
    is_blank = torch.arange(len(output.bias), device=labels.device) == (model.tokens.blank or 0)
    h = torch.tanh(g[:, :-1]).flatten(0, 1)
    bias = output.bias.masked_fill(is_blank, NEVER)
    return linear_cross_entropy(h, output.weight, bias, labels.flatten(), keep=inside.flatten())


def attention_internal_loss(model: AED, labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Summed over the labels and the end of each sentence: a scalar from labels (B, U) and their lengths (B,)."""
    read = model.embedding(nn.functional.pad(labels, (1, 0), value=model.sos))
    return outputs_loss(model, model.rnn(model.dropout(read)), labels, label_lengths)
