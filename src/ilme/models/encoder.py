"""The acoustic encoder of both networks: the paper's stack of LSTM layers, with the options that small data needs."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ilme.errors import BadInputError
from ilme.models.lstm import ALIGNED, padded_weights, start_deep
from ilme.models.whisper_encoder import WhisperConfig, WhisperEncoder
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["EncoderConfig", "LSTMEncoder", "ctc_blank", "ctc_layer"]

# cuDNN copies weights that are padded for each call anyway; users need not be told.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")

FRAMES = 32  # the lengths that LSTM layers read on a CPU are multiples of it
SHALLOW = 2  # layers that start with random weights; those above them pass on what they read, until they learn better


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of the encoder.

    Attributes:
        features: Dimension of an input frame; 3 stacked frames of 80 log-mels make 240.
        hidden: Units of each LSTM layer, in each direction.
        layers: Number of LSTM layers; 0 only where `whisper` has some.
        bidirectional: Read the utterance in both directions; a streaming model cannot.
        projection: Project each layer's output to this dimension, then LayerNorm; 0 leaves the layers plain.
        time_reduction: Make one frame of so many; 1 keeps the frame rate.
        reduce_after: The layer after which that is done; 0: before the LSTM layers, where there are Whisper's.
        reduce_by: How: their `concatenation`, or their `mean`, which asks for no wider layer.
        dropout: Between layers.
        whisper: Whisper's convolutions and Transformer layers before the LSTM layers; none by default.
    """

    features: int = 240
    hidden: int = 1024
    layers: int = 6
    bidirectional: bool = False
    projection: int = 0
    time_reduction: int = 1
    reduce_after: int = 2
    reduce_by: Literal["concatenation", "mean"] = "concatenation"
    dropout: float = 0.1
    whisper: WhisperConfig = field(default_factory=WhisperConfig)

    def __post_init__(self) -> None:
        if self.time_reduction < 1:
            raise BadInputError(f"time_reduction must be at least 1, got {self.time_reduction}")
        if self.reduce_by not in ("concatenation", "mean"):
            raise BadInputError(f"reduce_by={self.reduce_by!r} must be concatenation or mean")
        if self.whisper.layers and self.features != self.whisper.mel_bins:
            bins = self.whisper.mel_bins
            raise BadInputError(
                f"whisper layers read {bins} features, not {self.features}: set encoder.features={bins}"
            )
        if not self.whisper.layers and self.layers < 1:
            raise BadInputError(f"layers={self.layers} must be at least 1 without whisper layers")
        after_whisper = self.whisper.layers > 0 and self.reduce_after == 0
        if self.time_reduction > 1 and not (after_whisper or 1 <= self.reduce_after < self.layers):
            raise BadInputError(
                f"reduce_after={self.reduce_after} must name a layer below the top one (layers={self.layers}), or be 0 "
                "after whisper layers"
            )

    @property
    def outputs(self) -> int:
        if self.layers == 0:
            return self.projection or self.inputs
        return self.projection or self.hidden * (2 if self.bidirectional else 1)

    @property
    def inputs(self) -> int:
        """Dimension of a frame that the first LSTM layer reads."""
        if not self.whisper.layers:
            return self.features
        return self.whisper.width * (self.widening if self.reduce_after == 0 else 1)

    @property
    def widening(self) -> int:
        """How many times as wide a frame is after the reduction."""
        return self.time_reduction if self.reduce_by == "concatenation" else 1


class LSTMEncoder(nn.Module):
    """h_enc = Encoder(x): (B, T, features) to (B, T', outputs). An utterance may have no frame at all."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.whisper = WhisperEncoder(config.whisper) if config.whisper.layers else None
        self.blocks = nn.ModuleList(_Block(config, *block) for block in _plan(config))
        self.project = _projection(config.inputs, config.projection) if config.layers == 0 else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def capturable(self) -> bool:
        """Whether its passes can be recorded in a CUDA graph."""
        return all(bool(block.capturable) for block in self.blocks)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        reduce_at = self.config.reduce_after if self.config.time_reduction > 1 else -1
        done = 0
        if self.whisper is not None:
            x, lengths = self.whisper(x, lengths)
            if reduce_at == 0:
                x, lengths = _reduce_time(x, lengths, self.config)
            x = self.dropout(x)
        if self.project is not None:
            x = self.project(x)
        for block in self.blocks:
            x = block(x if done == 0 else self.dropout(x), lengths)
            done += int(block.count)  # type: ignore[arg-type]
            if done == reduce_at:
                x, lengths = _reduce_time(x, lengths, self.config)
        return x, lengths

    @property
    def streams(self) -> bool:
        """Whether it reads on without knowing what follows: LSTM layers in one direction."""
        return not self.config.bidirectional and self.whisper is None

    def read_on(self, x: Tensor, state: State, last: bool) -> tuple[Tensor, State]:
        """The next frames (1, T, features) of an utterance, after `state` (None at its beginning): (1, T', outputs).

        All that `read_on` gives, one after the other, is what `forward` gives for the whole utterance. Frames that wait
        for others of their group stay in the state; after the `last` ones their group is filled with zeros.
        """
        if not self.streams:
            raise BadInputError("this encoder reads an utterance from both ends; it cannot read on as audio comes")
        rest, layers = (x.new_zeros(1, 0, 0), [None] * len(self.blocks)) if state is None else state
        reduce_at = self.config.reduce_after if self.config.time_reduction > 1 else -1
        carried, done = [], 0
        for block, before in zip(self.blocks, layers, strict=True):
            x, after = block.read_on(x, before)  # type: ignore[operator]
            carried.append(after)
            done += int(block.count)  # type: ignore[arg-type]
            if done == reduce_at:
                x = torch.cat([rest, x], 1) if rest.shape[1] else x
                whole = x.shape[1] if last else x.shape[1] // self.config.time_reduction * self.config.time_reduction
                x, rest = x[:, :whole], x[:, whole:]
                x, _ = _reduce_time(x, torch.tensor([x.shape[1]], device=x.device), self.config)
        return x, (rest, carried)


def ctc_blank(tokens: Tokens) -> int:
    """CTC's blank: <eos> where there is none, which no transcript holds either."""
    return (tokens.blank if tokens.blank is not None else tokens.eos) or 0


def ctc_layer(width: int, tokens: Tokens) -> nn.Linear:
    """A CTC output layer.

    It starts with six blanks to a label. If blanks had first to be learnt, they would be all that is learnt for long.
    """
    layer = nn.Linear(width, len(tokens))
    with torch.no_grad():
        layer.bias[ctc_blank(tokens)] = math.log(6 * len(tokens))
    return layer


def _plan(config: EncoderConfig) -> list[tuple[int, int, int]]:
    """(input width, layers, layers below) of each block: layers with nothing between them run as one cuDNN call."""
    cuts = {0, config.layers}
    if config.projection:
        cuts |= set(range(config.layers))
    if config.time_reduction > 1 and config.reduce_after:
        cuts.add(config.reduce_after)
    starts = sorted(cuts)
    plan = []
    for start, end in itertools.pairwise(starts):
        width = config.inputs if start == 0 else config.outputs
        if config.time_reduction > 1 and start and start == config.reduce_after:
            width *= config.widening
        plan.append((width, end - start, start))
    return plan


class _Block(nn.Module):
    """LSTM layers, then the optional projection and LayerNorm."""

    def __init__(self, config: EncoderConfig, width: int, count: int, below: int) -> None:
        super().__init__()
        self.count, self.bidirectional = count, config.bidirectional
        between = config.dropout if count > 1 else 0.0
        self.lstm = nn.LSTM(
            width, config.hidden, count, batch_first=True, dropout=between, bidirectional=config.bidirectional
        )
        wide = config.hidden * (2 if config.bidirectional else 1)
        self.project = _projection(wide, config.projection)
        self.outputs = config.projection or wide
        start_deep(self.lstm, max(0, SHALLOW - below))
        if config.projection and below >= SHALLOW:
            _start_as_mean(self.project[0], config.hidden)  # type: ignore[index]

    @property
    def capturable(self) -> bool:
        """Whether it can run on a CUDA device without asking anything of the host."""
        return not self.bidirectional or self.count == 1

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.bidirectional and self.capturable and x.is_cuda:
            x = both_ways(self.lstm, x, lengths)
        elif self.bidirectional:  # the backward direction must start at each utterance's own last frame
            packed = pack_padded_sequence(x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        else:
            x = in_few_lengths(self.lstm, x)
        return self.project(x)  # type: ignore[no-any-return]

    def read_on(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The same layers over what comes next; no frame changes nothing."""
        if not x.shape[1]:
            return x.new_zeros(len(x), 0, self.outputs), state
        y, after = self.lstm(x, state)
        return self.project(y), after


def in_few_lengths(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """What an LSTM makes of x (B, T, D): (B, T, hidden); on a CPU without gradients T is rounded up for it.

    oneDNN compiles a pass for every batch and number of frames that it meets, and keeps it: a long run would keep one
    for each of its batches.
    """
    if x.is_cuda or torch.is_grad_enabled():
        return lstm(x)[0]  # type: ignore[no-any-return]
    y: Tensor = lstm(nn.functional.pad(x, (0, 0, 0, -x.shape[1] % FRAMES)))[0]
    return y[:, : x.shape[1]]


def both_ways(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """What one bidirectional layer makes of x (B, T, D): (B, T, 2 hidden), 0 after each end.

    The backward direction reads each utterance turned round within its own length. Unlike a packed sequence this asks
    nothing of the host, so it can be recorded in a CUDA graph. Widths are padded to what tensor cores read.
    """
    H = lstm.hidden_size
    steps = torch.arange(x.shape[1], device=x.device)
    turned = (lengths[:, None].clamp(min=1) - 1 - steps).clamp(min=0)[..., None]
    zeros = x.new_zeros(1, len(x), H + -H % ALIGNED)
    x = nn.functional.pad(x, (0, -x.shape[2] % ALIGNED))
    outputs = []
    for suffix in ("", "_reverse"):
        weights = padded_weights(lstm, suffix)
        read = x.gather(1, turned.expand_as(x)) if suffix else x
        y = torch._VF.lstm(read, (zeros, zeros), weights, True, 1, 0.0, lstm.training, False, True)[0][..., :H]
        outputs.append(y.gather(1, turned.expand_as(y)) if suffix else y)
    inside = steps < lengths[:, None].clamp(min=1)
    return torch.cat(outputs, -1) * inside[..., None]


def _projection(wide: int, projection: int) -> nn.Module:
    """A linear layer, then LayerNorm; nothing where `projection` is 0."""
    if not projection:
        return nn.Identity()
    return nn.Sequential(nn.Linear(wide, projection), nn.LayerNorm(projection))


@torch.no_grad()
def _start_as_mean(layer: nn.Module, hidden: int) -> None:
    """Both directions of a layer that starts as the identity, to what it read."""
    assert isinstance(layer, nn.Linear)
    layer.weight.mul_(0.1)
    layer.bias.zero_()
    for way in torch.split(layer.weight, hidden, 1):
        way += torch.eye(*way.shape) * hidden / layer.in_features


def _reduce_time(x: Tensor, lengths: Tensor, config: EncoderConfig) -> tuple[Tensor, Tensor]:
    """(B, T, D) to (B, ⌈T/factor⌉, factor·D), the last group filled with zeros; by mean, to (B, ⌈T/factor⌉, D)."""
    (B, T, D), factor = x.shape, config.time_reduction
    inside = torch.arange(T, device=x.device) < lengths[:, None]
    groups = nn.functional.pad(x * inside[..., None], (0, 0, 0, -T % factor)).reshape(B, -1, factor * D)
    lengths, sizes = (lengths + factor - 1) // factor, lengths
    if config.reduce_by == "concatenation":
        return groups, lengths
    starts = factor * torch.arange(groups.shape[1], device=x.device)
    filled = (sizes[:, None] - starts).clamp(1, factor)[..., None]
    return groups.view(B, groups.shape[1], factor, D).sum(2) / filled, lengths
