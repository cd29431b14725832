"""Training by sorting on the disk gives the model that training in memory gives."""

from __future__ import annotations

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.lm import ngram_sorted
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_sorted import train_sorted
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.tokens import Tokens

ARRAYS = ("key", "first", "target", "shorter")
EOS = 0


def text(seed, count, size):
    """Sentences of words of which few are frequent, some sentences empty."""
    random = np.random.default_rng(seed)
    return np.minimum(random.geometric(0.25, count) - 1, size - 1)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("prune", [(0,), (0, 0, 1), (0, 1)])
@pytest.mark.parametrize("own_start", [False, True])
def test_same_model_as_in_memory(tmp_path, monkeypatch, order, prune, own_start):
    """With pieces and blocks so small that every order has many runs, and contexts lie across blocks."""
    monkeypatch.setattr(ngram_sorted, "BLOCK", 37)
    size = 12
    ids = text(order, 3000, size - 1)  # the last one, the start symbol or unseen, is not in the text
    tokens = Tokens(tuple(f"p{i}" for i in range(size)), sos=size - 1 if own_start else EOS, eos=EOS, unk=1)
    options = NGramOptions(order, prune[:order])
    want = train_ngram(ids, tokens, options)
    found = train_sorted(ids, tokens, tmp_path / "m.safetensors", options, piece=100)
    assert (found.seen, found.kept, found.fallbacks) == (want.seen, want.kept, want.fallbacks)
    np.testing.assert_allclose(found.discounts, want.discounts)
    arpa = want.arpa
    NGramScorer(build_automaton(arpa), tokens, arpa.missing, arpa.unknown).save(tmp_path / "w.safetensors")
    one, other = (NGramScorer.load(tmp_path / f"{name}.safetensors") for name in "mw")
    assert (one.missing, one.unknown, one.tokens) == (other.missing, other.unknown, other.tokens)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one.automaton, name), getattr(other.automaton, name), err_msg=name)
    for name in ("log_prob", "backoff"):
        np.testing.assert_allclose(
            getattr(one.automaton, name), getattr(other.automaton, name), rtol=1e-6, atol=1e-6, err_msg=name
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.safetensors", "w.safetensors"]


@pytest.mark.parametrize("before", [[], [EOS]], ids=["alone", "after an empty one"])
def test_a_sentence_longer_than_a_piece(tmp_path, before):
    ids = np.concatenate([before, text(1, 500, 5) + 1, [EOS]]).astype(np.int64)
    tokens = Tokens(tuple(f"p{i}" for i in range(7)), sos=EOS, eos=EOS, unk=1)
    found = train_sorted(ids, tokens, tmp_path / "m.safetensors", NGramOptions(3), piece=50)
    assert found.seen == train_ngram(ids, tokens, NGramOptions(3)).seen


def test_what_cannot_be_sorted_is_said(tmp_path):
    tokens = Tokens(tuple(f"p{i}" for i in range(60_000)), sos=EOS, eos=EOS, unk=1)
    with pytest.raises(BadInputError, match="63 bits"):
        train_sorted(np.array([5, EOS]), tokens, tmp_path / "m.safetensors", NGramOptions(4))
    with pytest.raises(BadInputError, match="no text"):
        train_sorted(np.array([EOS, EOS]), tokens, tmp_path / "m.safetensors", NGramOptions(2))
    assert not list(tmp_path.iterdir())
