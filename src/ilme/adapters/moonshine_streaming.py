"""Moonshine, second generation: an encoder that looks back a little way, so that it can run while someone speaks.

    model = ilme.load_model("UsefulSensors/moonshine-streaming-tiny")     # hub id or folder with safetensors

Here it hears whole windows, as every attention decoder does. The decoder gives the encoder's states their places.
Utterances are encoded one by one: in a padded batch upstream's convolutions reach beyond the end of the shorter ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ilme.adapters.hf import Audio, encode_apart
from ilme.adapters.moonshine import Moonshine, MoonshineOptions, padded_waves
from ilme.tokens import Tokenizer

__all__ = ["MoonshineStreaming"]


class MoonshineStreaming(Moonshine):
    """A streaming Moonshine; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `MoonshineStreamingForConditionalGeneration`.
        tokenizer: Its tokenizer.
        options: How long its output may be.
        extractor: Not used: the model reads waveforms.
    """

    kind = "moonshine_streaming"
    upstream = "MoonshineStreamingForConditionalGeneration"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, options: MoonshineOptions | None = None, extractor: Any = None
    ) -> None:
        super().__init__(model, tokenizer, options, extractor)
        encoder = model.config.encoder_config
        self._samples = round(encoder.sample_rate * encoder.frame_ms / 1000)  # of a frame
        # A position for each state that the encoder gives, of four frames each.
        self.window = min(30.0, model.config.max_position_embeddings * 4 * self._samples / encoder.sample_rate)

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """The waveforms, padded to whole frames (B, samples), and their lengths (B,) in samples of whole frames."""
        waves, lengths = padded_waves(audio)
        whole = (lengths + self._samples - 1) // self._samples * self._samples
        return F.pad(waves, (0, int(whole.max()) - waves.shape[1])), whole

    @torch.inference_mode()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """The encoder's states at their places (B, T, D), in the decoder's width."""
        encoder, decoder = self.model.get_encoder(), self.model.model.decoder

        def hear(wave: Tensor) -> Any:
            # Without a mask upstream's encoder would look at all of the audio, which it was not trained to.
            return encoder(wave, attention_mask=torch.ones_like(wave))

        states, mask = encode_apart(hear, features.to(self.device, self.dtype), lengths)
        places = decoder.pos_emb(torch.arange(states.shape[1], device=self.device))
        return decoder.proj(states + places), mask
