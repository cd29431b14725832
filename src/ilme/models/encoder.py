"""The acoustic encoder of both networks: the paper's stack of LSTM layers, with the options that small data needs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ilme.errors import BadInputError

__all__ = ["EncoderConfig", "LSTMEncoder"]


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of the encoder.

    Attributes:
        features: Dimension of an input frame; 3 stacked frames of 80 log-mels make 240.
        hidden: Units of each LSTM layer, in each direction.
        layers: Number of LSTM layers.
        bidirectional: Read the utterance in both directions; a streaming model cannot.
        projection: Project each layer's output to this dimension, then LayerNorm; 0 leaves the layers plain.
        time_reduction: Concatenate this many frames into one; 1 keeps the frame rate.
        reduce_after: The layer after which frames are concatenated.
        dropout: Between layers.
    """

    features: int = 240
    hidden: int = 1024
    layers: int = 6
    bidirectional: bool = False
    projection: int = 0
    time_reduction: int = 1
    reduce_after: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.time_reduction < 1:
            raise BadInputError(f"time_reduction must be at least 1, got {self.time_reduction}")
        if self.time_reduction > 1 and not 1 <= self.reduce_after < self.layers:
            raise BadInputError(
                f"reduce_after={self.reduce_after} must name a layer below the top one (layers={self.layers})"
            )

    @property
    def outputs(self) -> int:
        return self.projection or self.hidden * (2 if self.bidirectional else 1)


class LSTMEncoder(nn.Module):
    """h_enc = Encoder(x): (B, T, features) to (B, T', outputs). An utterance may have no frame at all."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(_Block(config, width, count) for width, count in _plan(config))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        reduce_at = self.config.reduce_after if self.config.time_reduction > 1 else -1
        done = 0
        for block in self.blocks:
            x = block(x if done == 0 else self.dropout(x), lengths)
            done += int(block.count)  # type: ignore[arg-type]
            if done == reduce_at:
                x, lengths = _reduce_time(x, lengths, self.config.time_reduction)
        return x, lengths


def _plan(config: EncoderConfig) -> list[tuple[int, int]]:
    """(input width, layer count) of each block: layers that need nothing between them run as one cuDNN call."""
    cuts = {0, config.layers}
    if config.projection:
        cuts |= set(range(config.layers))
    if config.time_reduction > 1:
        cuts.add(config.reduce_after)
    starts = sorted(cuts)
    plan = []
    for start, end in itertools.pairwise(starts):
        width = config.features if start == 0 else config.outputs
        if config.time_reduction > 1 and start == config.reduce_after:
            width *= config.time_reduction
        plan.append((width, end - start))
    return plan


class _Block(nn.Module):
    """LSTM layers, then the optional projection and LayerNorm."""

    def __init__(self, config: EncoderConfig, width: int, count: int) -> None:
        super().__init__()
        self.count, self.bidirectional = count, config.bidirectional
        between = config.dropout if count > 1 else 0.0
        self.lstm = nn.LSTM(
            width, config.hidden, count, batch_first=True, dropout=between, bidirectional=config.bidirectional
        )
        wide = config.hidden * (2 if config.bidirectional else 1)
        self.project = (
            nn.Sequential(nn.Linear(wide, config.projection), nn.LayerNorm(config.projection))
            if config.projection
            else nn.Identity()
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.bidirectional:  # the backward direction must start at each utterance's own last frame
            packed = pack_padded_sequence(x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        else:
            x, _ = self.lstm(x)
        return self.project(x)  # type: ignore[no-any-return]


def _reduce_time(x: Tensor, lengths: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """(B, T, D) to (B, ⌈T/factor⌉, factor·D); a last group that is not full is filled with zeros."""
    B, T, D = x.shape
    inside = torch.arange(T, device=x.device) < lengths[:, None]
    x = nn.functional.pad(x * inside[..., None], (0, 0, 0, -T % factor))
    return x.reshape(B, -1, factor * D), (lengths + factor - 1) // factor
