"""Nemotron streaming ASR: a FastConformer encoder that looks ahead a fixed number of frames, as an RNN-T.

model = Nemotron.from_pretrained("nvidia/nemotron-speech-streaming-en-0.6b")     # hub id or folder with safetensors

Attention goes in chunks of `lookahead + 1` frames (80 ms each) and a limited number of chunks back; convolutions read
backwards only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.hf import Audio
from ilme.adapters.hf_frames import FrameByFrame, length_mask
from ilme.adapters.hf_transducer import LSTMTransducer
from ilme.adapters.parakeet import checked_bands, read_extractor
from ilme.data.nemo_mel import NemoMel
from ilme.errors import BadInputError
from ilme.tokens import Tokenizer

__all__ = ["Nemotron", "NemotronOptions"]


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
