"""No weights are decoded twice, and lists taken over equal lists decoded."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.fusion import FusionWeights
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.search.hypothesis import NBest
from tests.recogniser.job import BEAM, WEIGHTS, make_recogniser, make_utterances

SMALL = DecodingOptions(batch_size=2)


def scores(lists: dict[str, NBest]) -> list[tuple[float, ...]]:
    return [(h.scores.asr, h.scores.lm, h.scores.subtracted) for nbest in lists.values() for h in nbest]


def counted(decoder: SearchDecoder) -> list[FusionWeights]:
    """The weights that the decoder decodes from now on."""
    calls: list[FusionWeights] = []
    decode = decoder.decode
    decoder.decode = lambda w, b: (calls.append(w), decode(w, b))[1]  # type: ignore[method-assign]
    return calls


def test_the_same_weights_and_beam_are_decoded_once() -> None:
    decoder = SearchDecoder(make_recogniser("aed"), make_utterances(3), options=SMALL)
    calls = counted(decoder)
    remembered = CachedDecoder(decoder)
    first = remembered.decode(WEIGHTS, BEAM)
    assert remembered.decode(WEIGHTS, BEAM) == first
    assert calls == [WEIGHTS]
    remembered.decode(WEIGHTS, BEAM - 1)
    remembered.decode(FusionWeights(), BEAM)
    assert calls == [WEIGHTS, WEIGHTS, FusionWeights()]


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_lists_taken_over_get_the_scores_they_lack(kind: str) -> None:
    whole = SearchDecoder(make_recogniser(kind), make_utterances(3), options=SMALL)
    expected = whole.decode(FusionWeights(), BEAM)
    without = make_recogniser(kind)
    without.subtracted = None
    lists = SearchDecoder(without, make_utterances(3), options=SMALL).decode(FusionWeights(), BEAM)
    calls = counted(whole)
    remembered = CachedDecoder(whole)
    remembered.know(FusionWeights(), BEAM, lists)
    found = remembered.decode(FusionWeights(), BEAM)
    assert not calls
    assert [h.tokens for nbest in found.values() for h in nbest] == [
        h.tokens for nbest in expected.values() for h in nbest
    ]
    np.testing.assert_allclose(scores(found), scores(expected), atol=1e-4)
