"""Which slot a new label sequence takes."""

from __future__ import annotations

import pytest
import torch

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.prefixes import EMPTY, DerivedLane, Lane, PrefixPool, extend_hash
from ilme.search.transducer import TransducerOptions, TransducerSearch
from tests.search.test_transducer import acoustics, language_model, transducer


def test_places_without_a_sequence_do_not_push_out_those_with_one():
    """As in frames where a label looks promising until the LM is asked: nothing new enters the beam."""
    beam, labels = 3, torch.tensor([[1, 2, 3]])
    pool = PrefixPool([], batch=1, slots=7 * beam, device=torch.device("cpu"))
    hashes = extend_hash(torch.full((1, beam), EMPTY), labels)
    empty = torch.zeros(1, beam, dtype=torch.long)
    kept = pool.place(hashes, empty, labels, torch.ones(1, beam, dtype=torch.bool))
    for _ in range(40):
        hoped_for = extend_hash(hashes, labels + 3)
        offered = pool.place(hoped_for, kept, labels + 3, torch.zeros(1, beam, dtype=torch.bool))
        assert not set(offered.flatten().tolist()) & set(kept.flatten().tolist())
    assert torch.equal(pool.hashes.gather(1, kept), hashes)


@pytest.mark.parametrize("seed", range(8))
def test_long_utterances_are_the_same_alone_and_in_a_batch(seed):
    """Alone, many frames pass in which nothing enters the beam; in a batch another utterance's beam moves on."""
    model, lm = transducer(seed, units=6), language_model(seed, units=6)
    with torch.no_grad():
        model.output.bias[model.tokens.blank] += 4.0  # long blanks between labels
    fusion = Fusion(lm, TransducerInternalLM(model), FusionWeights(0.8, 0.3))
    search = TransducerSearch(model, fusion, TransducerOptions(beam=3))
    f, lengths = acoustics(seed, 120, batch=3), torch.tensor([120, 120, 120])
    together = search(f, lengths)
    for b in range(3):
        (alone,) = search(f[b : b + 1], lengths[b : b + 1])
        assert [h.tokens for h in alone] == [h.tokens for h in together[b]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[b]], abs=1e-9)


@torch.no_grad()
def test_the_least_score_is_that_of_each_sequence_without_blank():
    """It bounds what a subtracted LM can add: one of another sequence would prune what should stay."""
    model = transducer(5, units=7)
    internal, lm = TransducerInternalLM(model), language_model(5, units=7)
    own = Lane(model.start, model.predict, 4)
    lanes = [DerivedLane(own, internal.rows_of, 0), Lane(lm.start, lm.score, 4, 0)]
    labels, children = torch.tensor([0, 3, 6, 0]), torch.tensor([1, 2])
    for lane in (own, *lanes):
        lane.inherit(children, torch.tensor([0, 0]))
    for lane, scorer in zip(lanes, (internal, lm), strict=True):
        first, state = scorer.start(2)
        rows, _ = scorer.score(torch.tensor([3, 6]), state)
        expected = torch.cat([first[:1], rows])[:, 1:].amin(1)
        assert torch.allclose(lane.least_of(torch.tensor([0, 1, 2]), labels), expected)
        assert torch.allclose(lane.read(torch.tensor([2, 1]), labels)[:, 1:], rows[:, 1:].flip(0))
