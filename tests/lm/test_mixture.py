"""A mixture against its two formulas."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.lm.mixture import MixtureScorer
from ilme.protocols import NullScorer
from ilme.tokens import Tokens
from tests.lm.conftest import TOKENS


@pytest.mark.parametrize("kind", ["log-linear", "linear"])
def test_rows_follow_the_formula(pair, kind):
    mixture = MixtureScorer(pair, [0.3, 0.7], kind)
    states = [scorer.start(4)[1] for scorer in pair]
    _, state = mixture.start(4)
    for label in ([2, 3, 4, 5], [5, 5, 2, 2], [7, 6, 5, 4]):
        labels = torch.tensor(label)
        rows, state = mixture.score(labels, state)
        parts = []
        for i, scorer in enumerate(pair):
            part, states[i] = scorer.score(labels, states[i])
            parts.append(part)
        want = 0.3 * parts[0] + 0.7 * parts[1]
        if kind == "linear":
            want = (0.3 * parts[0].exp() + 0.7 * parts[1].exp()).log()
            torch.testing.assert_close(rows.exp().sum(1), torch.ones(4, dtype=torch.float64))
        torch.testing.assert_close(rows, want)
        torch.testing.assert_close(mixture.finish(rows), want[:, 0])


def test_one_scorer_of_weight_one_is_itself(pair):
    for kind in ("log-linear", "linear"):
        assert torch.allclose(MixtureScorer(pair[:1], [1.0], kind).start(2)[0], pair[0].start(2)[0])


def test_a_scorer_of_weight_zero_is_never_called(pair):
    class Broken(NullScorer):
        def start(self, n):
            raise RuntimeError("called")

    mixture = MixtureScorer([Broken(TOKENS), pair[0]], [0.0, 2.0])
    assert torch.equal(mixture.start(1)[0], 2 * pair[0].start(1)[0])


def test_conflicts_are_errors(pair):
    for scorers, weights, kind in (
        ([], [], "linear"),
        (pair, [1.0], "linear"),
        (pair, [0.5, 0.6], "linear"),
        (pair, [-0.5, 1.5], "linear"),
        (pair, [float("nan"), 1.0], "log-linear"),
        (pair, [0.0, 0.0], "log-linear"),
        (pair, [0.5, 0.5], "geometric"),
        ([pair[0], NullScorer(Tokens(TOKENS.pieces))], [0.5, 0.5], "linear"),
    ):
        with pytest.raises(BadInputError):
            MixtureScorer(scorers, weights, kind)
    with pytest.raises(VocabularyMismatchError, match="'d' against 'x'"):
        MixtureScorer([pair[0], NullScorer(Tokens(("<eos>", "<unk>", *"abcxef"), eos=0))], [0.5, 0.5])
