"""Bonuses in a long list, by hand and against a plain count."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.lm.long_lists import CrowdedPhrases, crowd
from ilme.lm.phrases import PhraseScorer
from ilme.search.rescoring import sequence_scores
from ilme.testing import numbered_tokens
from tests.lm.test_phrases import UNITS, lists, word_edges, words
from tests.oracle import score_sequence, sequences
from tests.phrase_oracle import phrase_bonus

TOKENS = numbered_tokens(UNITS, "attention")


def test_up_to_500_phrases_nothing_is_taken():
    assert [crowd(n) for n in (1, 309, 500)] == [0.0, 0.0, 0.0]
    assert crowd(10_000) == pytest.approx(0.5 * math.log(20)) == pytest.approx(1.4979, abs=1e-4)


def test_in_a_crowd_the_first_labels_earn_nothing():
    """One and a quarter of three labels that earn one each; what is left of the bonus is the same in the end."""
    crowded = CrowdedPhrases(TOKENS, {(1, 2, 3): 3.0}, words(), crowd=1.25)
    rows, state = crowded.start(1)
    assert rows[0].tolist() == [0, 0, 0, 0]
    rows, state = crowded.score(torch.tensor([1]), state)
    assert rows[0].tolist() == [0, 0, 0.75, 0]
    rows, state = crowded.score(torch.tensor([2]), state)
    assert rows[0].tolist() == [-0.75, -0.75, -0.75, 1]
    assert score_sequence(crowded, (1, 2, 3), end=True) == 1.75
    single = CrowdedPhrases(TOKENS, {(1,): 4.0, (2, 3): 2.0}, words(), crowd=1.25)
    assert [score_sequence(single, y, end=True) for y in ((1,), (2, 3), (2, 3, 1))] == [0, 0.75, 0.75]


@settings(max_examples=40, deadline=None)
@given(lists, word_edges(), st.sampled_from([0.25, 0.5, 1.0, 1.75, 5.0]))
def test_every_sequence_has_the_bonus_of_the_crowded_phrases(phrases, edges, taken):
    """Those of a plain scorer whose phrases are worth so much less; with no crowd its very rows."""
    everything = list(sequences(range(1, UNITS), 5))
    found = sequence_scores(CrowdedPhrases(TOKENS, phrases, edges, crowd=taken), everything, finish=True)
    worth = {p: bonus * max(0.0, len(p) - taken) / len(p) for p, bonus in phrases.items()}
    expected = torch.tensor([phrase_bonus(y, worth, edges) for y in everything], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    alone, plain = CrowdedPhrases(TOKENS, phrases, edges), PhraseScorer(TOKENS, phrases, edges)
    assert torch.equal(alone.start(2)[0], plain.start(2)[0])
