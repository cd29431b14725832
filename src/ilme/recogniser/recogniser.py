"""A model, ready to turn audio into n-best lists: features, encoder, search, text. Transducers and attention
decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ilme.data.audio import Samples
from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.protocols import AttentionDecoder, TokenScorer, Transducer
from ilme.runtime.state import State, cat, select
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.hypothesis import NBest
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.tokens import Tokenizer

__all__ = ["Features", "Recogniser"]

Features = Callable[[Sequence[Samples]], tuple[Tensor, Tensor]]
Options = TransducerOptions | AttentionOptions

HEARD = 3000.0  # seconds of audio, padding counted, that an encoder takes at once


class Recogniser:
    """One model with its frontend, tokenizer, scorers and search options; the weights come with each search.

    Args:
        model: A transducer or an attention decoder.
        features: Waveforms to features (B, T, D) and lengths (B,), such as an `ilme.data.features.Frontend`.
        tokenizer: Ids to text.
        lm: What is added.
        subtracted: What is subtracted.
        options: How to search; the beam comes with each search too.
        rate: Samples a second that `features` wants.
    """

    def __init__(
        self,
        model: Transducer | AttentionDecoder,
        features: Features,
        tokenizer: Tokenizer,
        *,
        lm: TokenScorer | None = None,
        subtracted: TokenScorer | None = None,
        options: Options | None = None,
        rate: int = 16000,
    ) -> None:
        self.model: Any = model
        self.features, self.tokenizer, self.rate = features, tokenizer, rate
        self.lm, self.subtracted = lm, subtracted
        self.is_transducer = hasattr(model, "join")
        kind = TransducerOptions if self.is_transducer else AttentionOptions
        self.options: Options = options or kind()
        if not isinstance(self.options, kind):
            raise BadInputError(f"this model is searched with {kind.__name__}, not {type(self.options).__name__}")

    @property
    def scores_end(self) -> bool:
        """Whether the scorers' end of sentence is part of a hypothesis' score."""
        return self.options.lm_eos

    @property
    def length_exponent(self) -> float:
        """α, if the search ranks by score / (|y| + 1)^α."""
        return 0.0 if isinstance(self.options, TransducerOptions) else self.options.length_normalisation

    @torch.no_grad()
    def encode(self, audio: Sequence[Samples]) -> State:
        """What the search needs of B waveforms: a nest of tensors, utterance first.

        A search may take more utterances at a time than the encoder has memory for, so they are encoded in pieces.
        """
        features, lengths = (x.to(self.model.device) for x in self.features(audio))
        rows = max(1, int(HEARD * self.rate / max(1, *(len(a) for a in audio))))
        pieces = zip(torch.split(features, rows), torch.split(lengths, rows), strict=True)
        return cat([self.model.encode(*piece) for piece in pieces])

    def search(self, encoded: State, weights: FusionWeights, beam: int) -> list[NBest]:
        """One n-best list, with text, for each utterance of what `encode` gave."""
        fusion = Fusion(self.lm, self.subtracted, weights)
        if isinstance(self.options, TransducerOptions):
            options = replace(self.options, beam=beam, nbest=min(self.options.nbest, beam))
            f, lengths = encoded
            lists = TransducerSearch(self.model, fusion, options)(f, lengths)
        else:
            nbest = min(self.options.nbest, beam)
            chosen = replace(self.options, beam=beam, nbest=nbest, enough=min(self.options.enough, nbest or beam))
            lists = AttentionSearch(self.model, fusion, chosen)(encoded)
        return [[replace(h, text=self.tokenizer.decode(list(h.tokens))) for h in nbest] for nbest in lists]

    def choose(self, encoded: State, rows: Sequence[int]) -> State:
        """The part of what `encode` gave that belongs to these utterances."""
        return select(encoded, torch.tensor(list(rows), device=self.model.device))
