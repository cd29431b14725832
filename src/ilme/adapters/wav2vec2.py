"""wav2vec 2.0 and HuBERT with a CTC layer, on the raw waveform; most of them spell words out.

    model = Wav2Vec2.from_pretrained("facebook/wav2vec2-base-960h")     # hub id or folder with safetensors

Their convolutions normalise over the whole utterance, so padding would change the result: utterances are encoded one by
one and padded afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.hf import Audio, encode_apart
from ilme.adapters.hf_frames import CTCLayer, FrameByFrame, NoOptions, unwritten_units
from ilme.errors import CheckpointError
from ilme.tokens import Tokenizer

__all__ = ["Hubert", "Wav2Vec2"]

SHORTEST = 1_600  # samples; the convolutions need 400


class Wav2Vec2(FrameByFrame):
    """A `Wav2Vec2ForCTC`; implements `ilme.protocols.CTCModel`.

    Args:
        model: The model.
        tokenizer: Its tokenizer, with the blank.
        extractor: Its feature extractor, which brings each waveform to mean 0 and deviation 1; None does so.
        options: None: it has no options.
    """

    kind = "wav2vec2"
    upstream = "Wav2Vec2ForCTC"
    blank_field = "pad_token_id"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, extractor: Any = None, options: NoOptions | None = None
    ) -> None:
        super().__init__(model, tokenizer)
        self._normalise = extractor is None or bool(getattr(extractor, "do_normalize", True))
        rate = getattr(extractor, "sampling_rate", self.rate)
        if not isinstance(rate, int) or isinstance(rate, bool) or not 1000 <= rate <= 192_000:
            raise CheckpointError(
                f"sampling_rate of preprocessor_config.json is no rate of samples: {str(rate)[:40]!r}"
            )
        self.rate = rate
        self.emit = CTCLayer(model.lm_head.weight, model.lm_head.bias, unwritten_units(tokenizer.tokens))

    @classmethod
    def extractor(cls, name: str) -> Any:
        from ilme.adapters.hub import hub_extractor

        return hub_extractor(name)

    @property
    def allowed(self) -> Tensor:
        """0 for each unit that may be put out, −∞ for the others (V,)."""
        return self.emit.allowed

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Waveforms (B, samples), normalised and padded with 0, and their lengths (B,)."""
        waves = [np.pad(np.asarray(a, np.float32), (0, max(0, SHORTEST - len(a)))) for a in audio]
        if self._normalise:
            waves = [(a - a.mean()) / np.sqrt(a.var() + 1e-7) for a in waves]
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(a) for a in waves], batch_first=True)
        return padded, torch.tensor([len(a) for a in waves])

    @torch.no_grad()
    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        inputs = features.to(self.device, self.dtype)
        h, mask = encode_apart(self.model.base_model, inputs, lengths)
        if mask is None:
            return h, torch.full((len(h),), h.shape[1], device=h.device)
        return h, mask.sum(1)


class Hubert(Wav2Vec2):
    """A `HubertForCTC`; implements `ilme.protocols.CTCModel`."""

    kind = "hubert"
    upstream = "HubertForCTC"
