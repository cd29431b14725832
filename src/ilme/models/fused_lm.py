"""An attention decoder with a language model inside, trained around it: Deep, Cold, Component and Simple Fusion.

The LM is trained before, and frozen. It reads the labels as the decoder does; its last hidden vector p_u, from which it
makes its logits ℓ_u = E p_u + b_LM, stands beside h_dec_u where the output layer reads. So the LM's state is a part of
the decoder's, and searches, internal LMs and packed weights need not know of it.

    deep        Gulcehre et al. 2015    z = W h + W_p (g p) + b,   g = σ(vᵀ p + c), one number: their controller, in
                                        front of this AED's output layer, which is linear and not a deep one;
                                        a trained AED and LM; only W, W_p, v, b and c learn
    cold        Sriram et al. 2017      z = W r + b,   r = ReLU(W_r [h; g ∘ l] + b_r),
                                        g = σ(W_g [h; l] + b_g),   l = ReLU(W_l (ℓ − max ℓ) + b_l)
                                        all but the LM learns, from the start
    component   Shan et al. 2019        around an LM of the training transcripts alone, which is replaced by the LM of a
                                        domain when it recognises (`replace_lm`); the gate here is Cold Fusion's
    simple      Stahlberg et al. 2018   P = softmax(W h + b + log P_LM), normalised once, after the LM is added to the
                                        logits; all but the LM learns, from the start

In these papers the network is an attention decoder, and so it is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ilme.errors import BadInputError
from ilme.models.aed import AED, AEDConfig
from ilme.models.lstm_lm import LSTMLM
from ilme.runtime.state import State
from ilme.tokens import Tokens, check_same_vocabulary

__all__ = ["FusedAED", "attention_network", "replace_lm"]

Part = tuple[Tensor, Tensor, Tensor | None]  # vectors (…, D), a matrix (V, D), a bias (V,)
TRUST = -1.0  # c of Deep Fusion at first: the LM's share begins at a quarter


class FusedOutput(nn.Module, ABC):
    """The output layer of a decoder with an LM: logits Σ W_i x_i + b_i (…, V) from [h; p] (…, H + P).

    Args:
        layer: The output layer of the decoder without an LM; its weights are taken over.
        lm: The LM.
    """

    def __init__(self, layer: nn.Linear, lm: LSTMLM) -> None:
        super().__init__()
        self.hidden = layer.in_features
        self.weight, self.bias = layer.weight, layer.bias
        self.lm = lm.requires_grad_(False)

    def train(self, mode: bool = True) -> FusedOutput:
        """The LM stays as it recognises: it learns nothing, and drops nothing out."""
        super().train(mode)
        self.lm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.parts(x[..., : self.hidden], x[..., self.hidden :])
        logits = linear(*first)
        for part in others:
            logits = logits + linear(*part)
        return logits

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same as one product: vectors (…, D), one matrix (V, D) and one bias (V,), for a loss that makes tiles."""
        parts = self.parts(x[..., : self.hidden], x[..., self.hidden :])
        bias = torch.stack([bias for _, _, bias in parts if bias is not None]).sum(0)
        return torch.cat([v for v, _, _ in parts], -1), torch.cat([w for _, w, _ in parts], 1), bias

    @abstractmethod
    def parts(self, h: Tensor, p: Tensor) -> list[Part]:
        """What is multiplied and added, from h (…, H) and p (…, P)."""


class DeepOutput(FusedOutput):
    """z = W h + W_p (g p) + b,   g = σ(vᵀ p + c)   (Gulcehre et al. 2015)."""

    def __init__(self, layer: nn.Linear, lm: LSTMLM) -> None:
        super().__init__(layer, lm)
        width = lm.config.embedding
        self.gate = nn.Linear(width, 1)
        self.lm_weight = nn.Parameter(torch.zeros(layer.out_features, width))  # it begins as the AED it is made of
        nn.init.constant_(self.gate.bias, TRUST)

    def parts(self, h: Tensor, p: Tensor) -> list[Part]:
        return [(h, self.weight, self.bias), (torch.sigmoid(self.gate(p)) * p, self.lm_weight, None)]


class GatedOutput(FusedOutput):
    """z = W r + b with r, g and l as above: the LM's logits through a gate for each unit   (Sriram et al. 2017).

    It reads the LM's logits and no hidden unit of it, so any LM over the same tokens fits.
    """

    def __init__(self, layer: nn.Linear, lm: LSTMLM) -> None:
        super().__init__(layer, lm)
        H, V = layer.in_features, layer.out_features
        self.read = nn.Linear(V, H)
        self.gate = nn.Linear(2 * H, H)
        self.mix = nn.Linear(2 * H, H)

    def parts(self, h: Tensor, p: Tensor) -> list[Part]:
        scores = self.lm.output(p)
        told = torch.relu(self.read(scores - scores.amax(-1, keepdim=True)))  # logits are known but for a constant
        gate = torch.sigmoid(self.gate(torch.cat([h, told], -1)))
        r = torch.relu(self.mix(torch.cat([h, gate * told], -1)))
        return [(r, self.weight, self.bias)]


class SimpleOutput(FusedOutput):
    """softmax(W h + b + log P_LM) = softmax(W h + E p + b + b_LM): what normalises P_LM is the same for all labels."""

    def parts(self, h: Tensor, p: Tensor) -> list[Part]:
        return [(h, self.weight, self.bias), (p, self.lm.output.weight, self.lm.output.bias)]


OUTPUTS: dict[str, type[FusedOutput]] = {
    "deep": DeepOutput,
    "cold": GatedOutput,
    "component": GatedOutput,
    "simple": SimpleOutput,
}


class FusedAED(AED):
    """An AED whose decoder has an LM inside; what its output layer reads is [h_dec_u; p_u] (n, H + P)."""

    output: FusedOutput  # type: ignore[assignment]

    def __init__(self, config: AEDConfig, tokens: Tokens) -> None:
        super().__init__(config, tokens)
        layer: Any = self.output
        self.output = OUTPUTS[config.fusion.method](layer, LSTMLM(config.fusion.lm, tokens))

    @property
    def lm(self) -> LSTMLM:
        return self.output.lm

    def zero_state(self, n: int) -> State:
        return super().zero_state(n), self.lm.rnn.zero_state(n)

    def decode(self, labels: Tensor, context: Tensor | None, rnn: State) -> tuple[Tensor, State]:
        own, told = rnn
        h, own = super().decode(labels, context, own)
        p, told = self.lm.advance(labels, told)
        return torch.cat([h, p], 1), (own, told)

    def beside_lm(self, h: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            p = self.lm(pad(labels, (1, 0), value=self.lm.sos))
        return torch.cat([h, p.to(h.dtype)], -1)

    def output_terms(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.output.terms(x)

    @torch.no_grad()
    def put_lm(self, lm: LSTMLM) -> None:
        """Takes over the weights of a trained LM of the same shape."""
        check_same_vocabulary(self.tokens, lm.tokens, "network", "LM")
        if lm.config != self.config.fusion.lm:
            raise BadInputError(f"this decoder was made for an LM of {self.config.fusion.lm}, not of {lm.config}")
        for mine, theirs in zip(self.lm.parameters(), lm.parameters(), strict=True):
            mine.copy_(theirs)


def attention_network(config: AEDConfig, tokens: Tokens) -> AED:
    """An AED, with an LM inside where its config says so."""
    return FusedAED(config, tokens) if config.fusion.method in OUTPUTS else AED(config, tokens)


@torch.no_grad()
def replace_lm(model: AED, lm: LSTMLM) -> FusedAED:
    """The same network around another LM over the same tokens, in evaluation mode; neither of the two changes.

    Deep Fusion reads the LM's hidden units: there it must be an LM of the same shape, such as the old one trained on.
    """
    if not isinstance(model, FusedAED):
        raise BadInputError("this model has no LM inside to replace: train one with `ilme train aed --fusion`")
    check_same_vocabulary(model.tokens, lm.tokens, "model", "LM")
    if isinstance(model.output, DeepOutput) and lm.config.embedding != model.config.fusion.lm.embedding:
        raise BadInputError(
            f"Deep Fusion reads {model.config.fusion.lm.embedding} hidden units of its LM, this LM has "
            f"{lm.config.embedding}: give one of the same shape"
        )
    with torch.random.fork_rng(devices=[]):
        made = FusedAED(replace(model.config, fusion=replace(model.config.fusion, lm=lm.config)), model.tokens)
    made, theirs = made.to(model.device, model.output.weight.dtype), model.state_dict()
    for name, value in made.state_dict().items():
        if not name.startswith("output.lm."):
            value.copy_(theirs[name])
    made.put_lm(lm)
    made.attach(model._tokenizer, model._frontend)
    return made.eval()
