"""Whisper's acoustic encoder as layers of our networks: a convolutional front end and Transformer layers.

It reads Whisper's own log-mels (`FrontendConfig(kind="whisper")`), 80 of them each 10 ms, and gives one vector each
20 ms. Unlike Whisper, it runs on an utterance's own length: positions are counted from its start, frames beyond its
end are masked, and nothing is padded to 30 seconds. Parameters have the names of OpenAI's files, so that published
weights can be where training starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ilme.errors import BadInputError

__all__ = ["WhisperConfig", "WhisperEncoder"]

_POSITIONS = "positional_embedding"  # sinusoids: computed here, never read


@dataclass(frozen=True)
class WhisperConfig:
    """Shape of the Transformer layers. Whisper's tiny models have layers=4, width=384, heads=6.

    Attributes:
        layers: Transformer layers; 0 leaves the whole part out.
        width: Dimension of a frame.
        heads: Attention heads of each layer.
        mel_bins: Dimension of an input frame.
        positions: Most output frames of an utterance, 20 ms each. Whisper's own end at 1500; the sinusoids go on.
        dropout: On what each attention and feed-forward block adds. Whisper has none, and some of its dimensions are
            so large that dropping a tenth of them hides the rest: leave it at 0 where its weights are used.
    """

    layers: int = 0
    width: int = 384
    heads: int = 6
    mel_bins: int = 80
    positions: int = 2000
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.layers < 0:
            raise BadInputError(f"whisper.layers={self.layers} must not be negative")
        if self.heads < 1 or self.width % (2 * self.heads):
            raise BadInputError(f"whisper.width={self.width} must be a multiple of twice heads={self.heads}")


class WhisperEncoder(nn.Module):
    """h = Transformer(GELU(conv₂(GELU(conv₁(x)))) + positions): (B, T, mel_bins) to (B, ⌈T/2⌉, width)."""

    positional_embedding: Tensor

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.mel_bins, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.ln_post = nn.LayerNorm(config.width)
        self.register_buffer(_POSITIONS, _sinusoids(config.positions, config.width), persistent=False)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames after an utterance's end have no influence on those before it."""
        x = functional.gelu(self.conv1(_silent_after(x, lengths).transpose(1, 2))).transpose(1, 2)
        x = functional.gelu(self.conv2(_silent_after(x, lengths).transpose(1, 2))).transpose(1, 2)
        lengths = (lengths + 1) // 2
        T = x.shape[1]
        if self.config.positions < T:
            seconds = 0.02 * self.config.positions
            raise BadInputError(
                f"an utterance has {T} frames of 20 ms; this encoder knows {seconds:g} s at most: cut the audio, or "
                "build the network with a larger whisper.positions"
            )
        x = x + self.positional_embedding[:T].to(x.dtype)
        heard = torch.arange(T, device=x.device) < lengths[:, None].clamp(min=1)
        mask = heard[:, None, None, :]  # (B, 1, 1, T): which frames may be attended to
        for block in self.blocks:
            x = block(x, mask)
        return self.ln_post(x), lengths


class _Layer(nn.Module):
    """x + Attention(LayerNorm(x)), then x + MLP(LayerNorm(x))."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.attn = _Attention(config)
        self.attn_ln = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.mlp_ln = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.attn_ln(x), mask))
        return x + self.dropout(self.mlp(self.mlp_ln(x)))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """softmax(QKᵀ / √d) V over the frames of an utterance."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, T, width = x.shape
        q, k, v = (part(x).view(B, T, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(B, T, width))  # type: ignore[no-any-return]


def _silent_after(x: Tensor, lengths: Tensor) -> Tensor:
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return x * inside[..., None]


def _sinusoids(positions: int, width: int) -> Tensor:
    """p_{t,i} = sin(t / 10000^{i/(h−1)}) for i < h = width / 2, and the cosines after them: (positions, width)."""
    half = width // 2
    rates = torch.exp(-math.log(10000.0) / (half - 1) * torch.arange(half))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
