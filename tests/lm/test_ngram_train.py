"""Modified Kneser–Ney against KenLM's own estimator and against the formulas written out in dictionaries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.tokens import Tokens
from tests.lm.backoff_reference import DictionaryModel

GOLDEN = Path(__file__).parent / "kneser_ney"
EOS, START = 0, -1


def stream(sentences):
    return np.array([i for s in sentences for i in (*s, EOS)])


def inventory(size):
    return Tokens(tuple(f"p{i}" for i in range(size)), sos=0, eos=0, unk=1)


def by_ngram(arpa):
    """ln P and ln back-off of each n-gram, the start written as −1."""
    prob, backoff = {}, {}
    for table in arpa.tables:
        for words, p, b in zip(table.words.tolist(), table.log_prob.tolist(), table.backoff.tolist(), strict=True):
            gram = tuple(START if w == arpa.start else w for w in words)
            prob[gram], backoff[gram] = p, b
    return prob, backoff


@pytest.mark.parametrize(("file", "order", "prune"), [("lmplz-3", 3, (0,)), ("lmplz-4-pruned", 4, (0, 0, 1))])
def test_equals_kenlm(file, order, prune):
    """The ARPA files were written by KenLM's lmplz from corpus.txt: same n-grams, same six digits."""
    sentences = [[int(w) for w in line.split()] for line in (GOLDEN / "corpus.txt").read_text().splitlines()]
    trained = train_ngram(stream(sentences), inventory(70), NGramOptions(order, prune))
    prob, backoff = by_ngram(trained.arpa)
    theirs = DictionaryModel(GOLDEN / f"{file}.arpa")
    special = {"<s>": START, "</s>": EOS, "<unk>": 1}
    grams = {g: tuple(special[w] if w in special else int(w) for w in g) for g in theirs.prob}
    assert set(grams.values()) == set(prob)
    for gram, ours in grams.items():
        if ours != (START,):
            assert prob[ours] == pytest.approx(theirs.prob[gram] * math.log(10), abs=2e-6)
        assert backoff[ours] == pytest.approx(theirs.backoff.get(gram, 0.0) * math.log(10), abs=2e-6)


def chen_goodman(sentences, size, order, limits):
    """A function p(word, context) straight from the formulas: counts in dictionaries, recursion, no back-off."""
    raw = [Counter() for _ in range(order + 1)]
    for sentence in sentences:
        line = [START, *sentence, EOS]
        for k in range(1, order + 1):
            for at in range(len(line) - k + 1):
                raw[k][tuple(line[at : at + k])] += 1
    a = [Counter() for _ in range(order + 1)]
    a[order] = raw[order] if order > 1 else Counter({g: c for g, c in raw[1].items() if g != (START,)})
    for k in range(1, order):
        left = defaultdict(set)
        for gram in raw[k + 1]:
            left[gram[1:]].add(gram[0])
        for gram in raw[k]:
            if gram[0] != START:
                a[k][gram] = len(left[gram])
            elif k > 1:
                a[k][gram] = raw[k][gram]
    d = [None]
    for k in range(1, order + 1):
        n = [sum(c == i for c in a[k].values()) for i in range(5)]
        values = None
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            values = [0.0] + [i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)]
            if not all(0 <= values[i] <= i for i in (1, 2, 3)):
                values = None
        d.append(values or [0.0, 0.5, 1.0, 1.5])
    following = defaultdict(list)
    for k in range(1, order + 1):
        for gram, c in a[k].items():
            following[gram[:-1]].append((gram, c))

    def p(word, context):
        k = len(context) + 1
        if k == 1:
            lower = 1 / size
        else:
            lower = p(word, context[1:])
        grams = following.get(context, [])
        total = sum(c for _, c in grams)
        if not total:
            return lower
        kept = {g: c for g, c in grams if k == 1 or raw[k][g] > limits[k - 1]}
        gamma = (sum(d[k][min(c, 3)] for c in kept.values()) + sum(c for g, c in grams if g not in kept)) / total
        c = kept.get((*context, word), 0)
        return max(c - d[k][min(c, 3)], 0) / total + gamma * lower

    return p, raw


sentences_of = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=7), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(sentences=sentences_of, order=st.integers(1, 4), prune=st.sampled_from([(0,), (0, 1), (0, 0, 1), (0, 1, 2)]))
def test_equals_the_formulas_and_sums_to_one_in_every_context(sentences, order, prune):
    size = 7  # ids 5 and 6 may be unseen
    options = NGramOptions(order, prune[:order])
    trained = train_ngram(stream(sentences), inventory(size), options)
    want, raw = chen_goodman(sentences, size, order, options.thresholds)
    scorer = NGramScorer(build_automaton(trained.arpa), inventory(size), dtype=torch.float64)
    contexts = sorted({g for k in range(1, order) for g in raw[k] if EOS not in g})
    for context in [(START,), *contexts]:
        rows, state = scorer.start(1)
        if context[0] != START:
            state = torch.zeros_like(state)  # the empty context
            rows = scorer._rows(state)
        for word in context[context[0] == START :]:
            rows, state = scorer.score(torch.tensor([word]), state)
        expected = [want(w, context[max(0, len(context) - order + 1) :]) for w in range(size)]
        assert rows[0].exp().tolist() == pytest.approx(expected, abs=1e-9)
        assert rows[0].exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_discounts_fall_back_where_the_counts_define_none():
    trained = train_ngram(stream([[2, 3], [2]]), inventory(5), NGramOptions(3))
    assert trained.fallbacks == (1, 2, 3)
    assert trained.discounts[0] == (0.5, 1.0, 1.5)


def test_a_start_symbol_of_its_own_is_left_out():
    tokens = Tokens(("<eos>", "<sos>", "a", "b"), sos=1, eos=0)
    trained = train_ngram(stream([[2, 3], [3]]), tokens, NGramOptions(2))
    assert trained.arpa.missing == (1,)
    scorer = NGramScorer(build_automaton(trained.arpa), tokens, (1,), 1, dtype=torch.float64)
    rows, _ = scorer.start(1)
    assert rows[0, 1] < -200
    assert rows.exp().sum().item() == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(BadInputError, match="start symbol"):
        train_ngram(stream([[1, 2]]), tokens)


def test_empty_sentences_and_a_missing_last_end_change_nothing():
    plain = train_ngram(stream([[2, 3], [3, 2, 2]]), inventory(4))
    odd = train_ngram(np.array([0, 0, 2, 3, 0, 0, 3, 2, 2]), inventory(4))
    for a, b in zip(plain.arpa.tables, odd.arpa.tables, strict=True):
        assert np.array_equal(a.words, b.words) and np.array_equal(a.log_prob, b.log_prob)


@pytest.mark.parametrize("ids", [[], [0, 0, 0], [2, 9, 0], [-1, 0]])
def test_bad_text_is_an_error(ids):
    with pytest.raises(BadInputError):
        train_ngram(np.array(ids, dtype=np.int64), inventory(5))


@pytest.mark.parametrize(("order", "prune"), [(0, (0,)), (11, (0,)), (2, ()), (2, (1,)), (3, (0, 2, 1)), (1, (0, 0))])
def test_bad_options_are_errors(order, prune):
    with pytest.raises(BadInputError):
        NGramOptions(order, prune)
    with pytest.raises(BadInputError, match="end of sentence"):
        train_ngram(np.array([1, 0]), Tokens(("a", "b")))


def test_the_edges_of_the_options():
    for order in (1, 10):
        assert NGramOptions(order, (0,)).thresholds == [0] * order
    for order in (0, 11):
        with pytest.raises(BadInputError, match=f"order must be 1 to 10, got {order}"):
            NGramOptions(order, (0,))
    assert NGramOptions(3, (0, 1, 1)).thresholds == [0, 1, 1]
    assert NGramOptions(4, (0, 2)).thresholds == [0, 2, 2, 2]
    for prune in ((), (1,), (0, 0, 0)):
        with pytest.raises(BadInputError, match="prune starts with 0 and has at most order=2 counts"):
            NGramOptions(2, prune)
    with pytest.raises(BadInputError, match="must not fall"):
        NGramOptions(3, (0, 2, 1))
