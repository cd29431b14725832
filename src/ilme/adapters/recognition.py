"""An adapted model as a `Recogniser`: encoder states are kept small, and output is no longer than speech can be.

Between decodes the encoder's output waits (T, D per utterance) in place of every layer's keys and values, which are
2·layers times as large and made in no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from ilme.adapters.whisper_timestamps import ReadsPastStamps, Stamped, TimestampRules
from ilme.data.audio import Samples
from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.protocols import AttentionDecoder, TokenScorer
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.state import State, map_tensors
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.hypothesis import NBest
from ilme.tokens import Tokenizer

__all__ = ["SEARCH", "AdaptedRecogniser", "EncoderCache", "SpeechModel", "punctuation", "search_options"]

LABELS_PER_SECOND = 12.0  # no speech has more; what goes on longer has been invented
SPARE_LABELS = 12  # short utterances need a few more than their length suggests
SHORTEST, LONGEST, FREE_LABELS = 0.6, 2.0, 8  # see `alike_in_length`
# As openai-whisper: length normalisation, and enough when as many hypotheses have ended as the beam is wide. Nothing is
# said more than four times in a row; where the model itself puts the end at twenty times any label, it is the end.
SEARCH = AttentionOptions(beam=8, length_normalisation=1.0, max_repeats=4, max_length=448, certain_end=3.0, enough=8)


def search_options(beam: int) -> AttentionOptions:
    """`SEARCH` with another beam."""
    return replace(SEARCH, beam=beam, enough=beam)


def punctuation(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids whose text has neither letter nor digit: what `AttentionOptions.repeat_ignores` can pass over."""
    texts = ((i, tokenizer.decode([i]).strip()) for i in range(len(tokenizer.tokens)))
    return tuple(i for i, t in texts if t and "\ufffd" not in t and not any(c.isalnum() for c in t))


class SpeechModel(AttentionDecoder, Protocol):
    """What `AdaptedRecogniser` needs of a model beside its steps: `ilme.adapters.hf.TransformerAED` has all of it."""

    max_labels: int

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def rules(self) -> Any: ...

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Waveforms of 16 kHz to features and their lengths (B,)."""
        ...

    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states (B, T, D), and a mask (B, T), True where a frame counts; None if all do."""
        ...

    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """What the decoder attends to, utterance first."""
        ...


class EncoderCache:
    """Encoder outputs of batches that were seen before, by their samples; kept on the CPU.

    An utterance that was part of a batch is known alone too: its row, with the batch's padding and mask.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, State] = {}
        self._rows: dict[bytes, tuple[bytes, int]] = {}  # the batch an utterance was in, and its row there

    def __call__(self, audio: Sequence[Samples], encode: Callable[[], State], device: torch.device) -> State:
        key = _digest(audio)
        if key in self._rows and key not in self._known:
            batch, row = self._rows[key]
            return map_tensors(lambda x: x[row : row + 1].to(device), self._known[batch])
        if key not in self._known:
            self._known[key] = map_tensors(lambda x: x.cpu(), encode())
            self._rows |= {_digest([samples]): (key, row) for row, samples in enumerate(audio)}
        return map_tensors(lambda x: x.to(device), self._known[key])


def _digest(audio: Sequence[Samples]) -> bytes:
    digest = blake2b(digest_size=16)
    for samples in audio:
        digest.update(len(samples).to_bytes(8, "little"))
        digest.update(samples.tobytes())
    return digest.digest()


class AdaptedRecogniser(Recogniser):
    """A `Recogniser` over a model that exists.

    Args:
        model: The model.
        lm: What is added.
        subtracted: What is subtracted.
        options: How to search.
        cache: Where encoder outputs are kept, so that recognisers that differ in their scorers share them.
    """

    def __init__(
        self,
        model: SpeechModel,
        *,
        lm: TokenScorer | None = None,
        subtracted: TokenScorer | None = None,
        options: AttentionOptions = SEARCH,
        cache: EncoderCache | None = None,
    ) -> None:
        self.cache = cache
        if isinstance(model.rules, TimestampRules):
            first = model.rules.first
            lm = None if lm is None else ReadsPastStamps(lm, first)
            subtracted = None if subtracted is None else Stamped(subtracted, first)
        super().__init__(
            model, model.features, model.tokenizer, lm=lm, subtracted=subtracted, options=options, rate=16_000
        )

    def encode(self, audio: Sequence[Samples]) -> State:
        if self.cache is None:
            return self._encode(audio)
        return self.cache(audio, lambda: self._encode(audio), self.model.device)

    @torch.inference_mode()
    def _encode(self, audio: Sequence[Samples]) -> State:
        """Encoder states (B, T, D), their mask, and the longest output (B,) that the audio allows."""
        limits = [min(self.model.max_labels, int(len(a) / 16_000 * LABELS_PER_SECOND) + SPARE_LABELS) for a in audio]
        features, lengths = self.features(audio)
        hidden, mask = self.model.hidden(features.to(self.model.device), lengths.to(self.model.device))
        return {"hidden": hidden, "mask": mask, "limits": torch.tensor(limits, device=hidden.device)}

    def search(self, encoded: State, weights: FusionWeights, beam: int) -> list[NBest]:
        if not isinstance(self.options, AttentionOptions):
            raise BadInputError("an attention model is searched with AttentionOptions")
        nbest = min(self.options.nbest, beam)
        options = replace(self.options, beam=beam, nbest=nbest, enough=min(self.options.enough, nbest or beam))
        search = AttentionSearch(self.model, Fusion(self.lm, self.subtracted, weights), options)
        lists = search(self.model.memory(encoded["hidden"], encoded["mask"]), encoded["limits"])
        lists = [alike_in_length(nbest, self.length_exponent) for nbest in lists]
        return [[replace(h, text=self.tokenizer.decode(list(h.tokens))) for h in nbest] for nbest in lists]


def alike_in_length(nbest: NBest, exponent: float) -> NBest:
    """Leaves out hypotheses that drop or invent whole stretches of speech.

    The measure is the hypothesis that the model itself, without any LM, likes best: what stays has between 0.6 and 2
    times its labels, give or take eight. A search without LM is not changed: its best hypothesis is that measure.
    """
    if not nbest:
        return nbest
    own = max(nbest, key=lambda h: h.scores.asr / (len(h.tokens) + 1) ** exponent)
    low, high = SHORTEST * len(own.tokens) - FREE_LABELS, LONGEST * len(own.tokens) + FREE_LABELS
    return [h for h in nbest if low <= len(h.tokens) <= high]
