"""A decoder that never decodes the same weights twice.

A search gives the same lists for the same weights, so what was decoded before the tuner began, and what the tuner ended
with, need not be decoded again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import SearchDecoder
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete, finite

__all__ = ["CachedDecoder"]


class CachedDecoder:
    """Implements `ilme.tuning.tuner.Decoder` over another decoder, whose lists it keeps in memory.

    Args:
        decoder: Decodes what is not known yet.
    """

    def __init__(self, decoder: SearchDecoder) -> None:
        self.decoder = decoder
        self._known: dict[tuple[FusionWeights, int], dict[str, NBest]] = {}

    def know(self, weights: FusionWeights, beam: int, lists: Mapping[str, NBest]) -> None:
        """Takes over lists that a decoder of the same model, utterances and options found with these weights.

        That decoder may have had no subtracted scorer; the scores that the lists then lack are filled in.
        """
        recogniser = self.decoder.recogniser
        missing: dict[str, SequenceScorer] = {}
        if recogniser.subtracted is not None and not weights.subtracted:
            missing["subtracted"] = SequenceScorer(recogniser.subtracted, finish=recogniser.ends["subtracted"])
        self._known[weights, beam] = finite(complete(lists, **missing))

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        key = (weights, beam)
        if key not in self._known:
            self._known[key] = self.decoder.decode(weights, beam)
        return self._known[key]
