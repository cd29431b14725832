"""The CTC layer of a network of ours as a recogniser of its own: the encoder, and one layer on it.

model = ilme.load_model("runs/aed", head="ctc")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import ctc_blank
from ilme.models.packed import pack
from ilme.models.rnnt import RNNT, RNNTConfig
from ilme.runtime.formats import Format
from ilme.tokens import Tokenizer, Tokens

if TYPE_CHECKING:
    from ilme.protocols import Samples

__all__ = ["CTCHead"]


class CTCHead:
    """P(π_t | x) = softmax(W h_enc_t + b); implements `ilme.protocols.CTCModel`.

    Args:
        network: An RNN-T or an AED that was trained with a CTC layer.
    """

    kind = "ctc"

    def __init__(self, network: RNNT | AED) -> None:
        if network.ctc is None:
            raise BadInputError(
                f"this {type(network).__name__} has no CTC layer: train one with model.ctc=true and a weight for CTC "
                "(bundles and int8 files leave it out)"
            )
        self.network, self.layer = network, network.ctc
        self.window = network.window
        # where the network has an end of sentence its id is CTC's blank: neither is ever a label
        self.tokens: Tokens = replace(network.tokens, blank=ctc_blank(network.tokens), sos=None, eos=None)

    @property
    def device(self) -> torch.device:
        return self.layer.weight.device

    @property
    def config(self) -> RNNTConfig | AEDConfig:
        return self.network.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.network.tokenizer

    @property
    def rate(self) -> int:
        return self.network.rate

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.network.parameters()

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        return self.network.features(audio)

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """h_enc (B, T', E) as CTC reads it: after the joint network's LayerNorm where the encoder has none."""
        h, lengths = self.network.encoder(features, lengths)
        if isinstance(self.network, RNNT) and not self.network.config.encoder.projection:
            h = self.network.encoder_head[0](h)
        return h, lengths

    def emit(self, h: Tensor | None) -> Tensor:
        return self.layer.bias if h is None else nn.functional.linear(h, self.layer.weight, self.layer.bias)

    def pack(self, format: Format = "float32") -> None:
        """Arranges the encoder's weights for the CPU; the CTC layer stays as it is."""
        pack(self.network.encoder, format, "float32")
