"""Parakeet: NVIDIA's FastConformer encoder, with a CTC layer.

    model = ParakeetCTC.from_pretrained("nvidia/parakeet-ctc-1.1b")     # hub id or folder with safetensors

What `transformers` does with padded batches is exact: convolutions and attention see nothing of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.hf import Audio
from ilme.adapters.hf_frames import CTCLayer, FrameByFrame, NoOptions, length_mask, unwritten_units
from ilme.data.nemo_mel import NemoMel, NemoMelConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokenizer

__all__ = ["ParakeetCTC", "ParakeetModel"]


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
        bands = int(model.config.encoder_config.num_mel_bins)
        self._extractor = extractor or NemoMel(NemoMelConfig(feature_size=bands))
        if self._extractor.config.feature_size != bands:
            made = self._extractor.config.feature_size
            raise CheckpointError(f"the encoder reads {bands} mel bands, and preprocessor_config.json makes {made}")
        self.rate = self._extractor.config.sampling_rate

    @classmethod
    def extractor(cls, name: str) -> NemoMel:
        from ilme.adapters.hub import extractor_settings

        try:
            return NemoMel(NemoMelConfig.of(extractor_settings(name)))
        except BadInputError as error:
            raise CheckpointError(f"the feature extractor of {name}: {error}") from error

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
