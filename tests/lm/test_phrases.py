"""The phrase scorer against a plain count of the phrases that a sequence holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.lm.phrases import PhraseScorer, WordEdges
from ilme.runtime.state import select
from ilme.search.rescoring import sequence_scores
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens
from tests.oracle import score_sequence, sequences
from tests.phrase_oracle import phrase_bonus

UNITS = 4  # id 0 is special; 1–3 are labels
flags = st.lists(st.booleans(), min_size=UNITS - 1, max_size=UNITS - 1)
phrase = st.lists(st.integers(1, UNITS - 1), min_size=1, max_size=4).map(tuple)
lists = st.dictionaries(phrase, st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), min_size=1, max_size=6)


@st.composite
def word_edges(draw):
    begins, closes, opens = ([special, *draw(flags)] for special in (False, True, True))
    closes = [a or b for a, b in zip(begins, closes, strict=True)]
    return WordEdges(tuple(begins), tuple(closes), tuple(opens))


def words(units=UNITS):
    """Every label is a word."""
    return WordEdges((False,) + (True,) * (units - 1), (True,) * units, (True,) + (False,) * (units - 1))


def scorer(phrases, edges=None, units=UNITS):
    return PhraseScorer(numbered_tokens(units, "attention"), phrases, edges or words(units))


@settings(max_examples=60, deadline=None)
@given(lists, word_edges())
def test_every_sequence_has_the_bonus_of_the_phrases_it_holds(phrases, edges):
    everything = list(sequences(range(1, UNITS), 5))
    found = sequence_scores(scorer(phrases, edges), everything, finish=True)
    expected = torch.tensor([phrase_bonus(y, phrases, edges) for y in everything], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_what_is_held_on_the_way_is_given_back():
    rows, state = scorer({(1, 2, 3): 3.0}).start(1)
    assert rows[0].tolist() == [0, 1, 0, 0], "a third of the bonus for the first of three labels"
    rows, state = scorer({(1, 2, 3): 3.0}).score(torch.tensor([1]), state)
    assert rows[0].tolist() == [-1, 0, 1, -1], "begun anew, gone on, left; left at the end too"
    rows, state = scorer({(1, 2, 3): 3.0}).score(torch.tensor([2]), state)
    assert rows[0].tolist() == [-2, -1, -2, 1]
    rows, _ = scorer({(1, 2, 3): 3.0}).score(torch.tensor([3]), state)
    assert rows[0].tolist() == [0, 1, 0, 0], "what has been earned stays"


@pytest.mark.parametrize(
    ("phrases", "sequence", "bonus"),
    [
        ({(1, 2): 2.0, (1, 2, 3): 3.0}, (1, 2, 3), 3.0),  # a phrase that begins another counts once
        ({(2,): 1.0, (1, 2): 2.0}, (1, 2), 2.0),  # and one that ends another
        ({(2,): 5.0, (1, 2): 2.0}, (1, 2), 5.0),  # never less than what it holds
        ({(1, 2): 2.0, (2, 3): 2.0}, (1, 2, 3), 4.0),  # phrases that overlap are both there
        ({(1, 2): 2.0}, (1, 2, 1, 2), 4.0),  # each time it is said
        ({(1, 1): 2.0}, (1, 1, 1), 4.0),
        ({(1, 2, 3): 3.0}, (1, 1, 2, 3), 3.0),  # begun again in the middle
        ({(1, 2, 1, 3): 4.0, (1, 2): 2.0}, (1, 2, 1, 2), 4.0),  # left for a phrase that begins inside it
    ],
)
def test_overlaps(phrases, sequence, bonus):
    assert score_sequence(scorer(phrases), sequence, end=True) == pytest.approx(bonus)


def test_only_whole_words_count():
    """Of ▁art, ist, s and a dash: `art` is not in `artist`, and stands without a space after a dash."""
    tokens = Tokens(("<eos>", "▁art", "ist", "-", "art"), sos=0, eos=0)
    edges = WordEdges(
        (False, True, False, False, False), (True, True, False, True, False), (True, False, False, True, False)
    )
    art = PhraseScorer(tokens, {(1,): 1.0, (4,): 1.0}, edges)
    said = {(1,): 1.0, (1, 2): 0.0, (1, 1): 2.0, (1, 3): 1.0, (4,): 1.0, (2, 4): 0.0, (3, 4): 1.0, (3, 4, 2): 0.0}
    for sequence, bonus in said.items():
        assert score_sequence(art, sequence, end=True) == bonus, sequence


@pytest.mark.parametrize("seed", range(3))
def test_batch_and_order_change_nothing(seed):
    generator = torch.Generator().manual_seed(seed)
    phrases = {tuple(torch.randint(1, 6, (n,), generator=generator).tolist()): float(n) for n in (1, 2, 2, 3, 4, 5)}
    one = scorer(phrases, units=6)
    labels = torch.randint(1, 6, (7, 9), generator=generator)
    rows, state = one.start(9)
    alone = [one.start(1) for _ in range(9)]
    order = torch.arange(9)
    for step in labels:
        mixed = torch.randperm(9, generator=generator)
        rows, state = one.score(step[order[mixed]], select(state, mixed))
        order = order[mixed]
        alone = [one.score(step[k : k + 1], s) for k, (_, s) in enumerate(alone)]
        assert torch.equal(rows, torch.cat([alone[k][0] for k in order.tolist()]))


def test_an_inventory_without_an_end_is_an_error():
    with pytest.raises(BadInputError, match="neither eos nor blank"):
        PhraseScorer(Tokens(("a", "b")), {(1,): 1.0}, words(2))
