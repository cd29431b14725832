"""A transducer's joint network that starts from what its CTC layer has learnt.

A fresh joint network learns text first and may not listen for long, though its encoder is good: predicting the next
label from the last ones is easier than finding where it is spoken. CTC cannot do that, and learns alignments at once.
So CTC is trained first, and the joint network then begins as its copy:

    f_v = s (W_ctc h + b_ctc)_v,    z_v = tanh(f_v + g_v) / s ≈ (W_ctc h + b_ctc)_v    for v < V, while g is small

where the joint dimension has room for all V units. Where it has not, but for the E encoder outputs,

    f = r h,    z = W_ctc tanh(f + g) / r + b_ctc ≈ W_ctc h + b_ctc

h is what comes out of the LayerNorm of the encoder's side; an encoder with a projection ends in one already. What g and
every update of f bring is multiplied with W_ctc / r, so r is as large as tanh allows for numbers of variance 1.

A factorised transducer (HAT) weighs blank against all labels together. Where CTC has z_blank − log Σ_v exp z_v, its
blank starts from what is linear and never less than that,

    z_blank − (1/(V−1)) Σ_v z_v − log(V − 1)
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ilme.errors import BadInputError
from ilme.models.rnnt import RNNT

__all__ = ["check_joint", "start_joint"]

SCALE = 0.12  # s: logits of ±8 lie where tanh is not yet flat
HEARD = 0.7  # r: encoder outputs of ±1 do; from 0.12 the loss began three times as high, and rose
OTHERS = 0.1  # what is left of the output layer's first, random weights
TEXT = 0.3  # and of the prediction network's last layer, so that g starts small


def check_joint(model: RNNT) -> nn.Linear:
    """The CTC layer; refuses a network that has none, or whose joint dimension cannot hold a copy of it."""
    if model.ctc is None:
        raise BadInputError("rnnt.listen needs the network's CTC layer: set model.ctc=true")
    joint, E = model.config.joint, model.config.encoder.outputs
    if joint < len(model.tokens) and min(joint, model.config.projection) < E:
        raise BadInputError(
            f"rnnt.listen starts the joint network from the CTC layer: model.joint={joint} must be at least the "
            f"{len(model.tokens)} output units, or model.joint and model.projection at least the {E} encoder outputs"
        )
    return model.ctc


@torch.no_grad()
def start_joint(model: RNNT) -> None:
    """Sets the joint network so that it gives about the logits of the CTC layer, whatever the labels so far are."""
    ctc, V = check_joint(model), len(model.tokens)
    narrow, wide = _linear(model.encoder_head[1]), _linear(model.encoder_head[2])
    model.output.weight.mul_(OTHERS)
    if model.config.joint >= V:
        _set_product(narrow, wide, SCALE * ctc.weight)
        wide.bias[:V] = SCALE * ctc.bias
        model.output.weight[:, :V] += torch.eye(V, device=model.device) / SCALE
        model.output.bias.zero_()
    else:
        E = ctc.in_features
        _set_product(narrow, wide, HEARD * torch.eye(E, device=model.device))
        wide.bias[:E] = 0.0
        model.output.weight[:, :E] = ctc.weight / HEARD
        model.output.bias.copy_(ctc.bias)
    if model.config.hat:
        _weigh_against_all(model.output, int(model.tokens.blank or 0))
    text = _linear(model.prediction_head[2])
    text.weight.mul_(TEXT)
    text.bias.zero_()


def _weigh_against_all(output: nn.Linear, blank: int) -> None:
    """z_blank becomes z_blank − mean of the labels' z − log(V − 1)."""
    labels = output.out_features - 1
    for part in (output.weight, output.bias):
        part[blank] -= (part.sum(0) - part[blank]) / labels
    output.bias[blank] -= math.log(labels)


def _linear(layer: nn.Module) -> nn.Linear:
    if not isinstance(layer, nn.Linear):
        raise BadInputError(f"a joint network is started while its layers are plain, not {type(layer).__name__}")
    return layer


def _set_product(narrow: nn.Linear, wide: nn.Linear, product: torch.Tensor) -> None:
    """wide[:V] · narrow = product (V, E), or its best approximation where the layer between them is narrower."""
    V, E = product.shape
    P = narrow.out_features
    narrow.bias.zero_()
    wide.weight[:V] = 0.0
    if P >= E:
        narrow.weight.copy_(torch.eye(P, E, device=product.device))
        wide.weight[:V, :E] = product
        return
    U, S, Vh = torch.linalg.svd(product.float(), full_matrices=False)
    rank = min(P, len(S))
    narrow.weight[:rank] = Vh[:rank].to(product.dtype)
    wide.weight[:V, :rank] = (U[:, :rank] * S[:rank]).to(product.dtype)
