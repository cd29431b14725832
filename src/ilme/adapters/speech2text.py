"""Speech2Text (fairseq S2T): filter banks, convolutional subsampling, a Transformer over word pieces.

model = Speech2Text.from_pretrained("facebook/s2t-small-librispeech-asr")     # hub id or folder
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.decoder import Linear, TransformerDecoder
from ilme.adapters.hf import RATE, Audio, TransformerAED, encode_apart, read_bart_layers
from ilme.tokens import Tokenizer

__all__ = ["Speech2Text", "Speech2TextOptions"]

SHORTEST = 1_600  # samples: shorter audio is followed by silence, so that the convolutions have frames to read


@dataclass(frozen=True)
class Speech2TextOptions:
    """Options of Speech2Text.

    Attributes:
        max_labels: The most labels of one window.
    """

    max_labels: int = 200


class Speech2Text(TransformerAED):
    """A Speech2Text model; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `Speech2TextForConditionalGeneration`.
        tokenizer: Its tokenizer.
        options: How long its output may be.
        extractor: Its feature extractor.
    """

    kind = "speech_to_text"
    upstream = "Speech2TextForConditionalGeneration"
    options_class = Speech2TextOptions

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        options: Speech2TextOptions | None = None,
        extractor: Any = None,
    ) -> None:
        self.options = options or Speech2TextOptions()
        self.model = model.eval().requires_grad_(False)
        config = model.config
        super().__init__(
            read_decoder(model),
            tokenizer,
            prefix=[config.decoder_start_token_id],
            suppress=sorted({config.pad_token_id, config.bos_token_id} - {config.eos_token_id, None}),
            max_labels=min(self.options.max_labels, int(config.max_target_positions) - 1),
        )
        self._extractor = extractor if extractor is not None else feature_extractor(config)

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Normalised filter banks (B, T, 80) and their lengths (B,)."""
        padded = [np.pad(np.asarray(a, np.float32), (0, max(0, SHORTEST - len(a)))) for a in audio]
        made = [
            self._extractor(a, sampling_rate=RATE, return_tensors="pt", padding=False)["input_features"][0]
            for a in padded
        ]
        lengths = torch.tensor([len(f) for f in made])
        features = torch.nn.utils.rnn.pad_sequence(made, batch_first=True)
        return features.nan_to_num(), lengths  # digital silence has no variance to normalise by

    @torch.inference_mode()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        return encode_apart(self.model.get_encoder(), features.to(self.device, self.dtype), lengths)


def read_decoder(model: Any) -> TransformerDecoder:
    """The decoder of a `Speech2TextForConditionalGeneration`."""
    config, decoder = model.config, model.model.decoder
    layers = read_bart_layers(model)
    factor = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    words = decoder.embed_tokens.weight.detach()
    positions, first = decoder.embed_positions.weights, decoder.padding_idx + 1

    def embed(labels: Tensor, at: int) -> Tensor:
        where = positions[first + at : first + at + labels.shape[1]].to(words)
        embedded: Tensor = words[labels] * factor + where
        return embedded

    return TransformerDecoder(layers, embed, decoder.layer_norm, Linear.of(model.lm_head))


def feature_extractor(config: Any) -> Any:
    from transformers import Speech2TextFeatureExtractor

    size = config.input_feat_per_channel
    return Speech2TextFeatureExtractor(feature_size=size, num_mel_bins=size)  # type: ignore[no-untyped-call]
