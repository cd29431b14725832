"""The folded LM against a reference that folds whole sequences; states, batches, riding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.lm.case_folding import FoldedInternal, FoldedScorer, Folds, fold_internal
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.runtime.state import select
from ilme.search.rescoring import sequence_scores
from ilme.tokens import Tokens

WRITTEN = "<eos> Ġhello ĠHello HELLO hello ĠElizabeth , . Ġ- Ġ$ 's ĠBank Ġbank ?!"
PIECES = tuple(WRITTEN.split())
TOKENS = Tokens(PIECES, eos=0)
ID = {piece: i for i, piece in enumerate(PIECES)}
FOLDS = Folds(TOKENS)
WORDS = list(range(1, len(PIECES)))
sequences = st.lists(st.sampled_from(WORDS), max_size=7)


@pytest.fixture(scope="module")
def base():
    lines = ["Ġhello Ġbank", "Ġhello ĠElizabeth 's Ġbank", "Ġbank hello", "Ġhello Ġ$ Ġbank"] * 3
    ids = [i for line in lines for i in (*FOLDS([ID[p] for p in line.split()]), 0)]
    arpa = train_ngram(np.array(ids), TOKENS, NGramOptions(3, (0,))).arpa
    return NGramScorer(build_automaton(arpa), TOKENS, arpa.missing, arpa.unknown, dtype=torch.float64)


class Listener:
    """An internal LM whose rows depend on every token heard, case and punctuation included. The state is their sum."""

    tokens, device = TOKENS, torch.device("cpu")

    def rows(self, heard):
        return (torch.sin(heard[:, None] * torch.arange(1.0, len(PIECES) + 1)) * 3).log_softmax(-1)

    def start(self, n):
        return self.rows(torch.zeros(n)), torch.zeros(n)

    def score(self, labels, state):
        state = state * 1.7 + labels
        return self.rows(state), state

    def finish(self, rows):
        return rows[:, 0]


def test_what_each_piece_stands_for():
    assert FOLDS([ID[p] for p in ("ĠHello", ",", "ĠElizabeth", "'s", "ĠBank", "?!", "Ġ-")]) == [
        ID["Ġhello"],
        ID["ĠElizabeth"],  # no token in lower case: it stands for its class itself
        ID["'s"],
        ID["Ġbank"],
    ]
    assert FOLDS([ID["HELLO"]]) == [ID["hello"]], "with and without a space are two words"
    assert FOLDS([ID["Ġ$"], 0]) == [ID["Ġ$"], 0], "a sign that is spoken stays, and so does the end"


@settings(max_examples=60, deadline=None)
@given(labels=sequences)
def test_a_sequence_scores_as_its_folded_form(base, labels):
    """Σ over the tokens = what the base says of the folded sequence as a whole."""
    found = sequence_scores(FoldedScorer(base, FOLDS), [labels], finish=True)
    wanted = sequence_scores(base, [FOLDS(labels)], finish=True)
    torch.testing.assert_close(found, wanted)


def test_punctuation_scores_nothing_and_changes_nothing(base):
    scorer = FoldedScorer(base, FOLDS)
    rows, state = scorer.start(2)
    assert (rows[:, [ID[","], ID["."], ID["?!"], ID["Ġ-"]]] == 0).all()
    assert torch.equal(rows[:, ID["Ġhello"]], rows[:, ID["ĠHello"]])
    before, state = scorer.score(torch.tensor([ID["Ġhello"], ID["Ġbank"]]), state)
    after, _ = scorer.score(torch.tensor([ID[","], ID["ĠHello"]]), state)
    assert torch.equal(after[0], before[0]) and not torch.equal(after[1], before[1])


@pytest.mark.parametrize(
    "make", [lambda base: FoldedScorer(base, FOLDS), lambda base: FoldedInternal(Listener(), FOLDS)]
)
def test_batches_and_reordered_states(base, make):
    scorer = make(base)
    labels = torch.tensor([ID["ĠHello"], ID[","], ID["Ġbank"]])
    rows, state = scorer.score(labels, scorer.start(3)[1])
    order = torch.tensor([2, 0, 0, 1])
    following = torch.tensor([ID["."], ID["ĠElizabeth"], ID[","], ID["ĠBank"]])
    moved, _ = scorer.score(following, select(state, order))
    for k, (parent, label) in enumerate(zip(order.tolist(), following.tolist(), strict=True)):
        own_rows, own = scorer.score(labels[parent : parent + 1], scorer.start(1)[1])
        torch.testing.assert_close(own_rows[0], rows[parent])
        torch.testing.assert_close(scorer.score(torch.tensor([label]), own)[0][0], moved[k])


def test_the_internal_lm_scores_classes_given_that_no_punctuation_comes():
    heard = torch.tensor([3.0, 8.0])
    probabilities = Listener().rows(heard).exp()
    found, _ = FoldedInternal(Listener(), FOLDS).score(torch.tensor([3, 8]), torch.zeros(2))
    for n in range(2):
        spoken = sum(float(probabilities[n, v]) for v in range(len(PIECES)) if FOLDS.classes[v] >= 0)
        for v in range(len(PIECES)):
            members = [w for w in range(len(PIECES)) if FOLDS.classes[w] == FOLDS.classes[v]]
            wanted = 0.0 if FOLDS.classes[v] < 0 else np.log(sum(float(probabilities[n, w]) for w in members) / spoken)
            assert float(found[n, v]) == pytest.approx(wanted, abs=1e-5)
    one_each = sorted({c for c in FOLDS.classes if c >= 0})
    torch.testing.assert_close(found[:, one_each].exp().sum(1), torch.ones(2))


def test_an_internal_lm_that_shares_its_hosts_step_still_does():
    pytest.importorskip("transformers")
    from ilme.ilm import internal_lm
    from ilme.protocols import SharedStep
    from tests.adapters.tiny import tiny_whisper

    model = tiny_whisper()
    plain = internal_lm(model, "zeroed")
    folded = fold_internal(plain, Folds(model.tokens))
    assert isinstance(folded, SharedStep) and folded.host is model
    assert not isinstance(fold_internal(Listener(), FOLDS), SharedStep)
    memory = model.memory(torch.randn(2, 50, 16))
    _, state = model.start(memory)
    labels = torch.tensor([5, 6])
    (asr, _), (rows, _) = folded.step_both(labels, state, folded.start(2)[1], memory)
    torch.testing.assert_close(asr, model.step(labels, state, memory)[0])
    torch.testing.assert_close(rows, folded.score(labels, folded.start(2)[1])[0])
    # words without case and punctuation: what is left of folding is nothing
    words = slice(0, 39)  # the last is suppressed
    torch.testing.assert_close(
        rows[:, words], plain.score(labels, plain.start(2)[1])[0][:, words], atol=1e-4, rtol=1e-4
    )


def test_what_cannot_be_folded_is_refused(base):
    with pytest.raises(BadInputError, match="no eos"):
        Folds(Tokens(("a", "b")))
    with pytest.raises(VocabularyMismatchError):
        FoldedScorer(base, Folds(Tokens(("<eos>", "x"), eos=0)))

    class Growing(Listener):
        def start(self, n):
            return self.rows(torch.zeros(n)), torch.zeros(n, 1)

        def score(self, labels, state):
            return self.rows(labels.float()), torch.cat([state, labels[:, None].float()], 1)

    scorer = FoldedScorer(Growing(), FOLDS)
    with pytest.raises(BadInputError, match="grows"):
        scorer.score(torch.tensor([1]), scorer.start(1)[1])
