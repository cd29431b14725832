"""Whisper's encoder over weights that someone else trained.

    x = GELU(conv₂(GELU(conv₁(features)))) + positions
    x ← x + SelfAttention(norm₁ x),   x ← x + FeedForward(norm₂ x)     in each layer

Most of a window of 30 seconds is, as a rule, silence after the speech. Its positions differ in nothing but their
number, so the encoder may read one in `stride` of them, and each counts for so many: log stride is added to what is
attended to with, here and in the decoder. Simply to leave them out is no way: the decoder then hears no end, and goes
on.

On a CPU `pack` arranges its weights; its attention is then made of oneDNN's products too, head by head.

Shapes: B utterances, N feature frames, T = N / 2 positions, H heads, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ilme.adapters.decoder import FeedForward, Linear
from ilme.models.packed import attend, has_bfloat16
from ilme.runtime.formats import Format

GROUP = 64  # rows are filled up to a multiple: oneDNN keeps a program for each number of rows that it meets

__all__ = ["Encoder", "EncoderLayer", "read_encoder", "thinned"]


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

    def __call__(self, x: Tensor, counts: Tensor | None, packed: torch.dtype | None) -> Tensor:
        """(B, T, D) to the same; counts (B, T) are the logarithms of how much each position counts.

        Packed attention is computed in the number format `packed`.
        """
        x = x + self.out(self._attention(self.qkv(self.norm(x)), counts, packed))
        return x + self.forward(self.forward_norm(x))

    def _attention(self, qkv: Tensor, counts: Tensor | None, packed: torch.dtype | None) -> Tensor:
        B, T, width = qkv.shape
        parts = qkv.view(B, T, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if packed is not None:
            added = [None] * B if counts is None else list(counts)
            mixed = [attend(query[b], key[b], value[b], self.scale, added[b], packed) for b in range(B)]
            return torch.stack(mixed)
        mask = None if counts is None else counts[:, None, None, :]
        whole = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.scale)
        return whole.transpose(1, 2).reshape(B, T, -1)


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
        self.packed: torch.dtype | None = None

    def pack(self, format: Format) -> None:
        """Arranges the weights for the CPU, see `ilme.models.packed`."""
        for layer in self.layers:
            for linear in (layer.qkv, layer.out, layer.forward.first, layer.forward.second):
                linear.pack(format, many=True)
        self.packed = torch.bfloat16 if format in ("int8", "bfloat16") and has_bfloat16() else torch.float32

    def __call__(self, features: Tensor, speech: Tensor | None = None, stride: int = 1) -> tuple[Tensor, Tensor | None]:
        """Features (B, mels, N) to states (B, T, D), and the logarithms of how much they count (B, T); None if alike.

        Args:
            features: Of the whole window; silence after the speech.
            speech: Positions of each utterance (B,) that are read one by one; all if not given.
            stride: Of those that follow, one in so many is read.
        """
        first, second = self.convolutions
        positions = len(self.positions)
        if speech is None or stride == 1 or bool((speech >= positions).all()):
            x = F.gelu(second(F.gelu(first(features)))).transpose(1, 2) + self.positions
            return self._layers(x, None), None
        # One more than the longest speech has: that is silence, and so is all that follows.
        made = min(positions, int(speech.max()) + 1)
        x = F.gelu(second(F.gelu(first(features[:, :, : 2 * made + 1]))))[:, :, :made].transpose(1, 2)
        places, counts = thinned(speech, positions, stride)
        read = places.clamp(max=made - 1)[:, :, None].expand(-1, -1, x.shape[2])
        counts = counts.to(x.dtype)
        return self._layers(x.gather(1, read) + self.positions[places], counts), counts

    def _layers(self, x: Tensor, counts: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, counts, self.packed)
        normed: Tensor = self.norm(x)
        return normed


def thinned(speech: Tensor, positions: int, stride: int) -> tuple[Tensor, Tensor]:
    """Which positions are read (B, T), each utterance's speech (B,) first, and the logarithms of how much each counts.

    A row with fewer than T is filled up with positions that count for nothing.
    """
    most = int((speech + (positions - speech + stride - 1) // stride).max())
    most = min(positions, -(-most // GROUP) * GROUP)
    slots = torch.arange(most, device=speech.device)
    beyond = slots - speech[:, None]
    places = torch.where(beyond < 0, slots, speech[:, None] + beyond * stride)
    counts = torch.where(beyond < 0, 0.0, math.log(stride)).masked_fill(places >= positions, -torch.inf)
    return places.clamp(max=positions - 1), counts


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
