"""Whisper's encoder over weights that someone else trained.

    x = GELU(conv₂(GELU(conv₁(features)))) + positions
    x ← x + SelfAttention(norm₁ x),   x ← x + FeedForward(norm₂ x)     in each layer

On a CPU `pack` arranges its weights; its attention is then made of oneDNN's products too, head by head.

Shapes: B utterances, N feature frames, T = N / 2 positions, H heads, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ilme.adapters.decoder import FeedForward, Linear
from ilme.models.packed import attend
from ilme.runtime.formats import Format

__all__ = ["Encoder", "EncoderLayer", "read_encoder"]


@dataclass(frozen=True)
class EncoderLayer:
    """The weights of one pre-norm encoder layer.

    Attributes:
        norm, qkv, out: Self-attention; queries, keys and values are one map.
        forward_norm, forward: The feed-forward block.
        heads: Attention heads.
        scale: Factor on the attention scores.
    """

    norm: nn.Module
    qkv: Linear
    out: Linear
    forward_norm: nn.Module
    forward: FeedForward
    heads: int
    scale: float

    def __call__(self, x: Tensor, packed: bool) -> Tensor:
        """(B, T, D) to the same."""
        x = x + self.out(self._attention(self.qkv(self.norm(x)), packed))
        return x + self.forward(self.forward_norm(x))

    def _attention(self, qkv: Tensor, packed: bool) -> Tensor:
        B, T, width = qkv.shape
        parts = qkv.view(B, T, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        if packed:
            return torch.stack([attend(*parts[:, b], self.scale) for b in range(B)])
        query, key, value = parts
        mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        return mixed.transpose(1, 2).reshape(B, T, -1)


class Encoder:
    """The convolutions, the positions and the layers.

    Args:
        convolutions: The two, of which the second halves the frames.
        positions: What is added to each position (T, D).
        layers: The layers.
        norm: The normalisation after the last of them.
    """

    def __init__(
        self, convolutions: tuple[nn.Conv1d, nn.Conv1d], positions: Tensor, layers: Sequence[EncoderLayer], norm: Any
    ) -> None:
        self.convolutions = convolutions
        self.positions = positions
        self.layers = list(layers)
        self.norm = norm
        self.packed = False

    def pack(self, format: Format) -> None:
        """Arranges the weights for the CPU, see `ilme.models.packed`."""
        for layer in self.layers:
            for linear in (layer.qkv, layer.out, layer.forward.first, layer.forward.second):
                linear.pack(format)
        self.packed = True

    def __call__(self, features: Tensor) -> Tensor:
        """Features (B, mels, N) to states (B, T, D)."""
        first, second = self.convolutions
        x = F.gelu(second(F.gelu(first(features)))).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x, self.packed)
        normed: Tensor = self.norm(x)
        return normed


def read_encoder(encoder: Any) -> Encoder:
    """The encoder of a `WhisperForConditionalGeneration`."""
    heads = int(encoder.config.encoder_attention_heads)
    layers = [
        EncoderLayer(
            norm=layer.self_attn_layer_norm,
            qkv=Linear.of(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            out=Linear.of(layer.self_attn.out_proj),
            forward_norm=layer.final_layer_norm,
            forward=FeedForward(layer.fc1, layer.activation_fn, layer.fc2),
            heads=heads,
            scale=float((encoder.config.d_model // heads) ** -0.5),
        )
        for layer in encoder.layers
    ]
    positions = encoder.embed_positions.weight.detach()
    return Encoder((encoder.conv1, encoder.conv2), positions, layers, encoder.layer_norm)
