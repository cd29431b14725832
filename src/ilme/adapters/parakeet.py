"""Parakeet: NVIDIA's FastConformer encoder, with a CTC layer, as an RNN-T, or as a TDT.

    model = ParakeetTDT.from_pretrained("nvidia/parakeet-tdt-0.6b-v3")     # hub id or folder with safetensors

What `transformers` does with padded batches is exact: convolutions and attention see nothing of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.hf import Audio
from ilme.adapters.hf_frames import CTCLayer, FrameByFrame, NoOptions, length_mask, unwritten_units
from ilme.adapters.hf_transducer import LSTMTransducer
from ilme.data.nemo_mel import NemoMel, NemoMelConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokenizer

__all__ = ["ParakeetCTC", "ParakeetModel", "ParakeetRNNT", "ParakeetTDT", "checked_bands", "read_extractor"]

LONGEST_DURATION = 64  # frames; Parakeet's are 0 to 4


def read_extractor(name: str, normalise: bool = True) -> NemoMel:
    """What makes features, as a hub id or folder says."""
    from ilme.adapters.hub import extractor_settings

    try:
        return NemoMel(NemoMelConfig.of(extractor_settings(name), normalise))
    except BadInputError as error:
        raise CheckpointError(f"the feature extractor of {name}: {error}") from error


def checked_bands(model: Any, extractor: NemoMel | None, normalise: bool = True) -> NemoMel:
    """The extractor, if it makes as many mel bands as the encoder reads; without one the usual for that many."""
    bands = int(model.config.encoder_config.num_mel_bins)
    extractor = extractor or NemoMel(NemoMelConfig(feature_size=bands, normalise=normalise))
    made = extractor.config.feature_size
    if made != bands:
        raise CheckpointError(f"the encoder reads {bands} mel bands, and preprocessor_config.json makes {made}")
    return extractor


class ParakeetModel(FrameByFrame):
    """The encoder and its features, which all Parakeet models share.

    Args:
        model: The model of `transformers`.
        tokenizer: Its tokenizer, with the blank.
        extractor: How audio becomes features; None as Parakeet's own.
        options: None: it has no options.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, extractor: NemoMel | None = None, options: NoOptions | None = None
    ) -> None:
        super().__init__(model, tokenizer)
        self._extractor = checked_bands(model, extractor)
        self.rate = self._extractor.config.sampling_rate

    @classmethod
    def extractor(cls, name: str) -> NemoMel:
        return read_extractor(name)

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Normalised log-mel features (B, T, bands) and their lengths (B,)."""
        return self._extractor(audio)

    @torch.no_grad()
    def hear(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder outputs (B, T', E), 0 after each utterance's end, and lengths (B,)."""
        lengths = lengths.to(self.device)
        heard = self.model.encoder(
            input_features=features.to(self.device, self.dtype), attention_mask=length_mask(lengths, features.shape[1])
        )
        mask = heard.attention_mask.bool()
        return heard.last_hidden_state.masked_fill(~mask[:, :, None], 0.0), mask.sum(1)


class ParakeetCTC(ParakeetModel):
    """A `ParakeetForCTC`; implements `ilme.protocols.CTCModel`."""

    kind = "parakeet_ctc"
    upstream = "ParakeetForCTC"
    blank_field = "pad_token_id"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, extractor: NemoMel | None = None, options: NoOptions | None = None
    ) -> None:
        super().__init__(model, tokenizer, extractor, options)
        layer = model.ctc_head  # a convolution over one frame
        self.emit = CTCLayer(layer.weight[:, :, 0], layer.bias, unwritten_units(tokenizer.tokens))

    @property
    def allowed(self) -> Tensor:
        """0 for each unit that may be put out, −∞ for the others (V,)."""
        return self.emit.allowed

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.hear(features, lengths)


class ParakeetRNNT(LSTMTransducer, ParakeetModel):
    """A `ParakeetForRNNT`; implements `ilme.protocols.Transducer`."""

    kind = "parakeet_rnnt"
    upstream = "ParakeetForRNNT"

    @torch.no_grad()
    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        h, lengths = self.hear(features, lengths)
        return self.model.encoder_projector(h), lengths


class ParakeetTDT(ParakeetRNNT):
    """A `ParakeetForTDT`; implements `ilme.protocols.DurationTransducer`."""

    kind = "parakeet_tdt"
    upstream = "ParakeetForTDT"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, extractor: NemoMel | None = None, options: NoOptions | None = None
    ) -> None:
        super().__init__(model, tokenizer, extractor, options)
        self.durations = tuple(model.config.durations)
        whole = all(isinstance(d, int) and 0 <= d <= LONGEST_DURATION for d in self.durations)
        if not whole or len(set(self.durations)) < len(self.durations) or max(self.durations, default=0) < 1:
            raise CheckpointError(f"durations of config.json must be different numbers of frames, got {self.durations}")
