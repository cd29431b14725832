"""Models of `transformers` that are searched frame by frame (CTC, transducers): what they have in common.

A new model is one subclass that says how audio becomes features (`features`), how features become encoder outputs, and
what its output layer or its joint network is. The inventory has a blank; everything else is the model's own.

Shapes: B utterances, T frames, E the encoder's width, V output units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ilme.adapters.hf import RATE, OwnOptions
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer
from ilme.errors import CheckpointError
from ilme.tokens import Tokenizer, Tokens

__all__ = ["CTCLayer", "FrameByFrame", "NoOptions", "length_mask", "unwritten_units"]

SPECIAL = ("<s>", "</s>", "<pad>", "<mask>")


@dataclass(frozen=True)
class NoOptions:
    """A model without options of its own."""


class FrameByFrame(OwnOptions):
    """A model with a blank; implements `ilme.protocols.SpeechModel` but for `features`.

    Args:
        model: The model of `transformers`.
        tokenizer: Text to ids, over the inventory of the output layer, blank included.
    """

    kind: str
    upstream: str  # the class of `transformers` that it is loaded as
    blank_field = "blank_token_id"  # where the config has the blank's id
    options_class: type = NoOptions
    window: float = 30.0  # seconds of audio at once; these encoders have no limit of their own
    rate: int = RATE

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        size = int(model.config.vocab_size)
        if len(tokenizer.tokens) != size:
            raise CheckpointError(f"the tokenizer has {len(tokenizer.tokens)} tokens, the model's output layer {size}")

    @classmethod
    def from_pretrained(
        cls, name: str, options: Any = None, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Loads a hub id or a local folder. Only safetensors are read, and no code of the repository is run."""
        from ilme.adapters.hub import check_id, hub_model, hub_tokenizer

        model = hub_model(name, cls.upstream, device, dtype)
        blank = check_id(name, model.config, cls.blank_field)
        tokenizer = HuggingFaceTokenizer(hub_tokenizer(name), model.config.vocab_size, blank=blank)
        return cls(model, tokenizer, cls.extractor(name), options)  # type: ignore[call-arg]

    @classmethod
    def extractor(cls, name: str) -> Any:
        """What makes features, as a hub id or folder says."""
        raise NotImplementedError(f"{cls.__name__} does not say how its features are made")

    @property
    def tokens(self) -> Tokens:
        return self.tokenizer.tokens

    def _weights(self) -> Iterator[Tensor]:
        return iter(self.model.parameters())

    @property
    def device(self) -> torch.device:
        return next(self._weights()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self._weights()).dtype


class CTCLayer:
    """z_t = W h_t + b over the units that may be put out: `emit` of `ilme.protocols.CTCModel`.

    Args:
        weight: W (V, E).
        bias: b (V,).
        never: Ids that are never put out.
    """

    def __init__(self, weight: Tensor, bias: Tensor, never: list[int]) -> None:
        self.weight, self.bias = weight, bias
        self.allowed = torch.zeros(len(bias), device=bias.device)
        self.allowed[torch.tensor(never, dtype=torch.long, device=bias.device)] = -torch.inf

    @torch.no_grad()
    def __call__(self, h: Tensor | None) -> Tensor:
        logits = self.bias if h is None else torch.nn.functional.linear(h, self.weight, self.bias)
        return logits.float() + self.allowed


def unwritten_units(tokens: Tokens) -> list[int]:
    """Special units such as <s>, which no transcript contains; the blank is none of them."""
    named = enumerate(tokens.pieces)
    return [i for i, p in named if i != tokens.blank and (p in SPECIAL or p.startswith("<id "))]


def length_mask(lengths: Tensor, frames: int) -> Tensor:
    """(B, T), True where a frame is an utterance's own."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]
