"""Nemotron streaming ASR: a FastConformer encoder that looks ahead a fixed number of frames, as an RNN-T.

model = Nemotron.from_pretrained("nvidia/nemotron-speech-streaming-en-0.6b")     # hub id or folder with safetensors

Attention goes in chunks of `lookahead + 1` frames (80 ms each) and a limited number of chunks back; convolutions read
backwards only. So audio may come in pieces, and gives what the whole gives:

    search, stream = TransducerSearch(model, fusion), model.stream()
    found = search.stream(1)
    for samples in microphone:
        found.feed(stream.feed(samples))
    found.feed(stream.finish())
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ilme.adapters.hf import Audio
from ilme.adapters.hf_frames import FrameByFrame, length_mask
from ilme.adapters.hf_transducer import LSTMTransducer
from ilme.adapters.parakeet import checked_bands, read_extractor
from ilme.data.nemo_mel import SHORTEST, NemoMel, NemoMelConfig
from ilme.errors import BadInputError
from ilme.tokens import Tokenizer

__all__ = ["Nemotron", "NemotronOptions", "NemotronStream"]

BEHIND = 2  # frames whose inputs are computed again at each chunk, so that no edge shows: mel frames, encoder frames


@dataclass(frozen=True)
class NemotronOptions:
    """Options of Nemotron.

    Attributes:
        lookahead: Encoder frames of 80 ms that the attention looks ahead, one of those that the model was trained with
            (13, 6, 1 or 0); −1 takes the model's own default.
    """

    lookahead: int = -1

    def __post_init__(self) -> None:
        if not isinstance(self.lookahead, int) or not -1 <= self.lookahead <= 1000:
            raise BadInputError(f"lookahead must be a number of frames, or -1, got {self.lookahead!r}")


class Nemotron(LSTMTransducer, FrameByFrame):
    """A `NemotronAsrStreamingForRNNT`; implements `ilme.protocols.Transducer`.

    Args:
        model: The model of `transformers`.
        tokenizer: Its tokenizer, with the blank.
        extractor: How audio becomes features; None as Nemotron's own.
        options: How far it looks ahead.
    """

    kind = "nemotron_asr_streaming"
    upstream = "NemotronAsrStreamingForRNNT"
    options_class = NemotronOptions

    def __init__(
        self, model: Any, tokenizer: Tokenizer, extractor: NemoMel | None = None, options: NemotronOptions | None = None
    ) -> None:
        super().__init__(model, tokenizer)
        options = options or NemotronOptions()
        own = int(model.config.encoder_config.default_num_lookahead_tokens)
        self.lookahead = own if options.lookahead < 0 else options.lookahead
        self._extractor = checked_bands(model, extractor, normalise=False)
        self.rate = self._extractor.config.sampling_rate

    @property
    def extractor_config(self) -> NemoMelConfig:
        """How features are made."""
        return self._extractor.config

    @classmethod
    def extractor(cls, name: str) -> NemoMel:
        return read_extractor(name, normalise=False)

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Log-mel features (B, T, bands) and their lengths (B,)."""
        return self._extractor(audio)

    @torch.no_grad()
    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        lengths = lengths.to(self.device)
        heard = self.model.encoder(
            input_features=features.to(self.device, self.dtype),
            attention_mask=length_mask(lengths, features.shape[1]),
            num_lookahead_tokens=self.lookahead,
        )
        mask = heard.attention_mask.bool()
        h = heard.last_hidden_state.masked_fill(~mask[:, :, None], 0.0)
        return self.model.encoder_projector(h), mask.sum(1)

    def stream(self) -> NemotronStream:
        """The encoder over one recording that comes in pieces."""
        return NemotronStream(self)


class NemotronStream:
    """Acoustic terms of audio that comes in pieces: those of `Nemotron.encode`, a chunk of the attention at a time.

    Args:
        model: The model.
    """

    def __init__(self, model: Nemotron) -> None:
        self.model, self.encoder = model, model.model.encoder
        self.after = copy.copy(self.encoder)  # the layers behind the subsampling, which is done here
        self.after._modules = self.encoder._modules | {"subsampling": _Given()}
        self.config = model.extractor_config
        self.factor = int(self.encoder.config.subsampling_factor)
        self.samples = np.zeros(0, np.float32)  # what mel frames still to come need
        self.first_sample, self.mel_done = 0, 0  # where they begin; how many mel frames are done
        self.mels = torch.zeros(1, 0, self.config.feature_size)  # what encoder frames still to come need
        self.first_mel, self.done = 0, 0
        self.attention: Any = None
        self.convolution: Any = None

    def feed(self, samples: Audio) -> Tensor:
        """Acoustic terms (1, t, J) of the chunks that these samples (N,) complete; there may be none."""
        self._hear(samples, last=False)
        size = self.model.lookahead + 1
        heard = self.first_mel + self.mels.shape[1]
        whole = (max(heard - 1, -1) // self.factor + 1) // size * size  # frame j needs the mel frames up to factor · j
        return self._encode(whole, last=False)

    def finish(self) -> Tensor:
        """Acoustic terms (1, t, J) of what is left."""
        self._hear(np.zeros(0, np.float32), last=True)
        return self._encode(-1, last=True) if self.mels.shape[1] else self._nothing()

    def _hear(self, samples: Audio, last: bool) -> None:
        """Makes the mel frames that the samples complete: frame i needs those up to hop · i + n_fft / 2."""
        hop, half = self.config.hop_length, self.config.n_fft // 2
        self.samples = np.concatenate([self.samples, np.asarray(samples, np.float32)])
        end = self.first_sample + len(self.samples)
        count = end // hop if last else max(0, (end - half) // hop + 1)
        if last and end < SHORTEST:
            self.samples = np.pad(self.samples, (0, SHORTEST - end))
            count = SHORTEST // hop
        if count <= self.mel_done:
            return
        bands, _ = self.model.features([self.samples])
        begin = self.first_sample // hop
        self.mels = torch.cat([self.mels, bands[:, self.mel_done - begin : count - begin]], 1)
        self.mel_done = count
        keep = max(0, count - BEHIND - half // hop - 1)
        self.samples, self.first_sample = self.samples[keep * hop - self.first_sample :], keep * hop

    @torch.no_grad()
    def _encode(self, until: int, last: bool) -> Tensor:
        """The frames from the last one done up to one; all that there are at the end."""
        if not last and until <= self.done:
            return self._nothing()
        model, begin = self.model, self.first_mel // self.factor
        inputs = self.mels.to(model.device, model.dtype)
        if not last:
            inputs = inputs[:, : self.factor * (until - 1) + 1 - self.first_mel]
        mask = torch.ones(inputs.shape[:2], dtype=torch.bool, device=model.device)
        embedded = self.encoder.subsampling(inputs, mask)
        count = int(self.encoder._get_subsampling_output_length(mask.sum(1))) if last else until - begin
        new = embedded[:, self.done - begin : count].clone()
        parts = []
        for chunk in new.split(model.lookahead + 1, dim=1):
            heard = self.after(
                input_features=chunk,
                past_key_values=self.attention,
                padding_cache=self.convolution,
                use_cache=True,
                num_lookahead_tokens=model.lookahead,
            )
            self.attention, self.convolution = heard.past_key_values, heard.padding_cache
            parts.append(model.model.encoder_projector(heard.last_hidden_state))
        self.done = begin + count
        keep = max(0, self.done - BEHIND) * self.factor
        self.mels, self.first_mel = self.mels[:, keep - self.first_mel :], keep
        return torch.cat(parts, 1) if parts else self._nothing()

    def _nothing(self) -> Tensor:
        width = self.model.model.encoder_projector.out_features
        return torch.zeros(1, 0, width, device=self.model.device, dtype=self.model.dtype)


class _Given(nn.Module):
    """In place of the subsampling: its outputs, made before."""

    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, padding_cache: Any = None
    ) -> Tensor:
        return input_features.clone()
