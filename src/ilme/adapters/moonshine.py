"""Moonshine: an attention model on the raw waveform, with rotary positions and a gated feed-forward block.

    model = Moonshine.from_pretrained("UsefulSensors/moonshine-tiny")     # hub id or folder with safetensors

Its encoder normalises over the whole utterance, so padding would change the result: utterances are encoded
one by one and padded afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.decoder import FeedForward, Linear, TransformerDecoder
from ilme.adapters.hf import Audio, TransformerAED, encode_apart, read_layer
from ilme.errors import BadInputError
from ilme.tokens import Tokenizer

__all__ = ["Moonshine", "MoonshineOptions", "padded_waves", "unwritten"]

SHORTEST = 1_600  # samples; the encoder's convolutions need 0.06 s, a label hardly fits into less than 0.1 s


@dataclass(frozen=True)
class MoonshineOptions:
    """Options of Moonshine.

    Attributes:
        max_labels: The most labels of one window; the model was trained on sequences of up to 194.
    """

    max_labels: int = 194


class Moonshine(TransformerAED):
    """A Moonshine model; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `MoonshineForConditionalGeneration`.
        tokenizer: Its tokenizer.
        options: How long its output may be.
        extractor: Not used: the model reads waveforms.
    """

    kind = "moonshine"
    upstream = "MoonshineForConditionalGeneration"
    options_class = MoonshineOptions

    def __init__(
        self, model: Any, tokenizer: Tokenizer, options: MoonshineOptions | None = None, extractor: Any = None
    ) -> None:
        self.options = options or MoonshineOptions()
        self.model = model.eval().requires_grad_(False)
        config = model.config
        super().__init__(
            read_decoder(model),
            tokenizer,
            prefix=[config.decoder_start_token_id],
            suppress=unwritten(tokenizer, config.eos_token_id),
            max_labels=self.options.max_labels,
        )

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """The waveforms themselves, padded (B, samples), and their lengths (B,)."""
        return padded_waves(audio)

    @torch.inference_mode()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        return encode_apart(self.model.get_encoder(), features.to(self.device, self.dtype), lengths)


def padded_waves(audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
    """Waveforms padded to the longest (B, samples), and their lengths (B,), which are at least SHORTEST."""
    lengths = [max(len(a), SHORTEST) for a in audio]
    padded = np.zeros((len(audio), max(lengths)), dtype=np.float32)
    for row, samples in zip(padded, audio, strict=True):
        row[: len(samples)] = samples
    return torch.from_numpy(padded), torch.tensor(lengths)


def read_decoder(model: Any) -> TransformerDecoder:
    """The decoder of a `MoonshineForConditionalGeneration`."""
    config, decoder = model.config, model.model.decoder
    heads = int(decoder.layers[0].self_attn.q_proj.out_features // decoder.layers[0].self_attn.head_dim)
    if decoder.layers[0].self_attn.num_key_value_groups != 1:
        raise BadInputError("this Moonshine model shares keys among heads; only one key per head is supported")
    layers = [
        read_layer(
            layer,
            norms=("input_layernorm", "post_attention_layernorm", "final_layernorm"),
            out="o_proj",
            forward=FeedForward(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2, gated=True),
            heads=heads,
            scale=float(layer.self_attn.scaling),
        )
        for layer in decoder.layers
    ]
    words = decoder.embed_tokens.weight.detach()
    output = getattr(model, "proj_out", None) or model.get_output_embeddings()
    rotate = rotation(decoder.rotary_emb.inv_freq.detach(), int(config.max_position_embeddings))
    return TransformerDecoder(layers, lambda labels, _: words[labels], decoder.norm, Linear.of(output), rotate)


def rotation(frequencies: Tensor, positions: int) -> Callable[[Tensor, int], Tensor]:
    """Rotary embedding of the first 2·len(frequencies) features, neighbours paired.

    (x₁, x₂) at position p → (x₁ cos pω − x₂ sin pω, x₂ cos pω + x₁ sin pω)
    """
    angles = torch.outer(torch.arange(positions, device=frequencies.device).float(), frequencies.float())
    cos, sin = angles.cos(), angles.sin()  # (positions, pairs)
    rotated = 2 * len(frequencies)

    def rotate(x: Tensor, start: int) -> Tensor:
        c, s = (t[start : start + x.shape[2]].to(x.dtype) for t in (cos, sin))
        even, odd = x[..., 0:rotated:2], x[..., 1:rotated:2]
        turned = torch.stack([even * c - odd * s, odd * c + even * s], dim=-1).flatten(-2)
        return torch.cat([turned, x[..., rotated:]], dim=-1)

    return rotate


def unwritten(tokenizer: Tokenizer, eos: int) -> list[int]:
    """Special units such as <s>, <unk> and <<ST_0>>, which no transcript contains."""
    names = enumerate(tokenizer.tokens.pieces)
    return [i for i, p in names if i != eos and (p in ("<s>", "<unk>", "<pad>") or p.startswith(("<<ST_", "<id ")))]
