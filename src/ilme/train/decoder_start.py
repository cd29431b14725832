"""An attention decoder that starts from what its CTC layer has learnt.

CTC alone teaches an encoder in a few hundred steps, and needs no decoder for that, which does not know yet where to
look. So the encoder may listen first, and the decoder then begins as a copy of CTC's layer: its LSTM layers pass on
about what they read, the label and the context,

    h_dec ≈ r (e + c),    W_d = W_ctc / r,    b_d = b_ctc

with small e. From its first step on the decoder then says of a label whether the attention has found it, which is what
the attention learns from.
"""

from __future__ import annotations

import torch
from torch import nn

from ilme.errors import BadInputError
from ilme.models.aed import AED
from ilme.models.encoder import ctc_blank
from ilme.models.lstm import start_deep

__all__ = ["check_decoder", "start_decoder"]

DRAWN = 4096  # standard normal inputs on which r is measured
TEXT = 0.2  # what is left of the embeddings' first, random weights
OTHERS = 0.1  # and of the output layer's


def check_decoder(model: AED) -> nn.Linear:
    """The CTC layer; refuses a network that has none, or whose decoder is too narrow to pass on what is heard."""
    if model.ctc is None:
        raise BadInputError("aed.listen needs the network's CTC layer: set model.ctc=true")
    E, H = model.config.encoder.outputs, model.config.decoder_hidden
    if H < E:
        raise BadInputError(
            f"aed.listen starts the decoder from the CTC layer: model.decoder_hidden={H} must be at least the {E} "
            "encoder outputs"
        )
    return model.ctc


@torch.no_grad()
def start_decoder(model: AED) -> None:
    """Sets the decoder so that it gives about the logits of the CTC layer for the context, whatever the labels are."""
    ctc = check_decoder(model)
    E = ctc.in_features
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same weights in every process
        start_deep(model.rnn.lstm, 0)
        drawn = torch.randn(DRAWN, E, device=model.device)
    model.embedding.weight.mul_(TEXT)
    h, _ = model.rnn.step(drawn, model.rnn.zero_state(DRAWN))
    r = (h[:, :E] * drawn).sum() / drawn.square().sum()
    model.output.weight.mul_(OTHERS)
    model.output.weight[:, :E] += ctc.weight / r
    model.output.bias.copy_(ctc.bias)
    model.output.bias[ctc_blank(model.tokens)] = (
        ctc.bias.median()
    )  # a decoder's sentence ends once, CTC is mostly blank
