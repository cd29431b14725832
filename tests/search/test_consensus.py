"""Consensus against brute force: every answer against every answer that may have been said."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ilme.errors import BadInputError
from ilme.search.consensus import choose, consensus, expected_errors, folded_words, joined, posteriors
from ilme.search.hypothesis import Hypothesis, Scores


def hypothesis(text, score):
    tokens = tuple(sum(map(ord, w)) for w in text.split())
    return Hypothesis(tokens, score, Scores(asr=score, length=len(tokens)), text=text)


def distance(a, b):
    """Levenshtein's recursion as it is written down."""
    if not a or not b:
        return len(a) + len(b)
    same = distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(same, distance(a[1:], b) + 1, distance(a, b[1:]) + 1)


def random_list(draw, size):
    texts = {" ".join(draw.choice("abc") for _ in range(draw.randint(1, 5))) for _ in range(size)}
    made = [hypothesis(text, draw.uniform(-6, 0)) for text in sorted(texts)]
    return sorted(made, key=lambda h: -h.score)


def brute_force(lists, temperature, exponent):
    """P of each text, then R of each text, straight from the formulas."""
    said = {}
    for nbest in lists:
        scale = (len(nbest[0].tokens) + 1) ** exponent / temperature
        total = sum(math.exp(h.score * scale) for h in nbest)
        for h in nbest:
            said[h.text] = said.get(h.text, 0) + math.exp(h.score * scale) / total / len(lists)
    return {y: sum(p * distance(o.split(), y.split()) for o, p in said.items()) for y in said}


@pytest.mark.parametrize("seed", range(25))
def test_the_consensus_has_the_fewest_expected_errors(seed):
    draw = random.Random(seed)
    lists = [random_list(draw, draw.randint(1, 6)) for _ in range(draw.randint(1, 3))]
    temperature, exponent = draw.choice([0.3, 1.0, 4.0]), draw.choice([0.0, 0.7, 1.0])
    risk = brute_force(lists, temperature, exponent)
    ranked = consensus(lists, temperature, exponent)
    assert risk[ranked[0].text] == pytest.approx(min(risk.values()))
    assert {h.text for h in ranked} == set(risk) and len({h.tokens for h in ranked}) == len(ranked)
    shares = {words: share for words, (_, share) in joined(lists, temperature, exponent).items()}
    assert sum(shares.values()) == pytest.approx(1)
    found = expected_errors(shares)
    assert {" ".join(words): value for words, value in found.items()} == pytest.approx(risk)


def test_it_is_not_always_the_best_by_score():
    """Three that nearly agree outweigh one that stands alone."""
    nbest = [hypothesis("x y z", -1.0), hypothesis("a b c", -1.1), hypothesis("a b d", -1.2), hypothesis("a b e", -1.2)]
    assert choose(nbest, 1.0)[0].text == "a b c" and choose(nbest, 0.0) is nbest
    assert [h.text for h in choose(nbest, 1.0)[1:]] == ["x y z", "a b d", "a b e"]


def test_a_cold_posterior_leaves_the_best_and_a_hot_one_counts_all_alike():
    nbest = random_list(random.Random(1), 6)
    assert choose(nbest, 1e-3) == nbest
    assert posteriors(nbest, 1e9).tolist() == pytest.approx([1 / len(nbest)] * len(nbest))
    with pytest.raises(BadInputError, match="above 0"):
        posteriors(nbest, 0.0)


def test_normalised_scores_are_those_of_the_whole_utterance_again():
    nbest = [hypothesis("a b c", -0.5), hypothesis("a b d", -0.75)]
    assert posteriors(nbest, 1.0, exponent=1.0)[0] == pytest.approx(1 / (1 + math.exp(-4 * 0.25)))
    assert posteriors(nbest)[0] == pytest.approx(1 / (1 + math.exp(-0.25)))


def test_case_and_marks_do_not_count_and_the_first_list_writes():
    first, second = [hypothesis("Yes, it is.", -1.0)], [hypothesis("yes it is", -0.1), hypothesis("no", -0.2)]
    assert consensus([first, second], 1.0)[0].text == "Yes, it is."
    assert folded_words("“Well…” (he said) it's 5.5!") == ("well", "he", "said", "it's", "5.5")
    assert consensus([[], []], 1.0) == [] and consensus([[], first], 1.0) == first


def test_lists_that_agree_on_nothing_keep_every_hypothesis():
    lists = [[hypothesis(text, -1.0)] for text in ("a", "b", "c")]
    answers = [h.text for h in consensus(lists, 1.0)]
    assert sorted(answers) == ["a", "b", "c"]
    assert all(len(set(p)) == 2 for p in itertools.pairwise(answers))
