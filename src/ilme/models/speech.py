"""A network of ours as a recogniser knows it: with the frontend that makes its features, and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.tokens import Tokenizer

if TYPE_CHECKING:
    from ilme.data.features import Frontend, FrontendConfig
    from ilme.protocols import Samples

__all__ = ["SpeechNetwork"]

RATE = 16_000


class SpeechNetwork(nn.Module):
    """Base of the RNN-T and the AED; a loaded one implements `ilme.protocols.SpeechModel`."""

    window = 30.0  # seconds at once: the networks take more, but were trained on utterances

    def __init__(self) -> None:
        super().__init__()
        self._tokenizer: Tokenizer | None = None
        self._frontend: FrontendConfig | None = None
        self._frontends: dict[torch.device, Frontend] = {}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def attach(self, tokenizer: Tokenizer | None, frontend: FrontendConfig | None) -> None:
        """Says how labels become text, and audio becomes features."""
        self._tokenizer, self._frontend = tokenizer, frontend
        self._frontends = {}

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise BadInputError(
                f"this {type(self).__name__} has no tokenizer; save it with one: save_model(…, tokenizer)"
            )
        return self._tokenizer

    @property
    def frontend(self) -> FrontendConfig:
        """How audio becomes features."""
        if self._frontend is None:
            raise BadInputError(
                f"this {type(self).__name__} has no frontend; save it with one: save_model(…, frontend)"
            )
        return self._frontend

    @property
    def rate(self) -> int:
        """The frontend's; of a network without one, whose features are made elsewhere, the usual one."""
        return RATE if self._frontend is None else self._frontend.rate

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Waveforms to features (B, T, D) and lengths (B,); what is too short for a single vector is followed by
        silence.
        """
        from ilme.data.features import Frontend

        shortest = self.frontend.shortest
        long_enough = [a if len(a) >= shortest else np.pad(a, (0, shortest - len(a))) for a in audio]
        if self.device not in self._frontends:
            self._frontends[self.device] = Frontend(self.frontend, self.device)
        return self._frontends[self.device](long_enough)
