"""A transducer's search while the audio comes: the same words as for the whole utterance, with LM and internal LM.

stream = SpeechStream(recogniser)
for samples in microphone:
    print(stream.feed(samples))       # the best text so far
nbest = stream.finish()
"""

from __future__ import annotations

import numpy as np
import torch

from ilme.data.audio import Samples
from ilme.data.features import Frontend
from ilme.errors import BadInputError
from ilme.protocols import StreamingEncoder
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.state import State
from ilme.search.consensus import choose
from ilme.search.hypothesis import NBest
from ilme.search.transducer import TransducerOptions, TransducerSearch

__all__ = ["SpeechStream", "can_stream"]


def can_stream(recogniser: Recogniser) -> bool:
    """Whether the model can be searched as audio comes: a transducer that reads in one direction."""
    return isinstance(recogniser.model, StreamingEncoder) and bool(recogniser.model.streams)


class SpeechStream:
    """One utterance, from its first sample to its last.

    Args:
        recogniser: Whose model can stream (`can_stream`).
    """

    def __init__(self, recogniser: Recogniser) -> None:
        if not can_stream(recogniser) or not isinstance(recogniser.options, TransducerOptions):
            raise BadInputError("this model hears an utterance as a whole; only transducers that read in one direction "
                                "stream")  # fmt: skip
        self.recogniser, self.model = recogniser, recogniser.model
        fusion = recogniser.fusion(recogniser.weights)
        self._search = TransducerSearch(self.model, fusion, recogniser.options, recogniser.idle).stream(1)
        self._config = self.model.frontend
        self._frontend = Frontend(self._config, self.model.device)
        self._left: Samples = np.zeros(0, dtype=np.float32)  # samples that are not yet a whole vector
        self._encoder: State = None
        self.samples = 0  # that were fed

    def feed(self, samples: Samples) -> str:
        """Hears on (N,), at the model's rate; the best text so far."""
        self.samples += len(samples)
        self._left = np.concatenate([self._left, samples.astype(np.float32)])
        self._advance(last=False)
        return self.text

    def finish(self) -> NBest:
        """The n-best list, after the last sample."""
        shortest = self._config.shortest
        if self.samples < shortest:  # as a recogniser fills up what is too short for a single vector
            self._left = np.pad(self._left, (0, shortest - self.samples))
        self._advance(last=True)
        (nbest,) = self._search.finish()
        recogniser = self.recogniser
        return choose(recogniser.told(nbest), recogniser.options.consensus, recogniser.length_exponent)

    @property
    def text(self) -> str:
        """The best text so far."""
        return self.recogniser.tokenizer.decode(list(self._search.partial()[0].tokens))

    @torch.no_grad()
    def _advance(self, last: bool) -> None:
        """Searches through the vectors that are whole; the samples of the next one are kept."""
        config = self._config
        vectors = config.vectors(len(self._left))
        if not vectors and not last:
            return
        features = torch.zeros(1, 0, config.dimension, device=self.model.device)
        if vectors:
            whole = torch.from_numpy(self._left[: config.samples(vectors)])[None]
            features, _ = self._frontend.from_waveforms(whole, torch.tensor([whole.shape[1]]))
            self._left = self._left[vectors * config.stride * config.hop_samples :]
        f, self._encoder = self.model.encode_on(features, self._encoder, last)
        if f.shape[1]:
            self._search.feed(f)
