"""What is subtracted, smoothed: the formula, its bound, what stays shared, and a decoder that would loop without it."""

from __future__ import annotations

import math

import pytest
import torch

from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.ilm.transducer import TransducerInternalLM
from ilme.protocols import NullScorer, SharedPrediction, SharedStep
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.smoothing import Smoothing, smoothed, uniform
from ilme.testing import numbered_tokens, tiny
from ilme.tokens import Tokens
from tests import oracle


def test_the_formula_in_float64():
    torch.manual_seed(0)
    p = torch.rand(5, 8, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    q = torch.rand(8, dtype=torch.float64)
    q /= q.sum()
    for share in (1e-6, 0.1, 0.9):
        found = Smoothing(share, q.log())(p.log())
        expected = (1 - share) * p + share * q
        torch.testing.assert_close(found.exp(), expected, rtol=1e-14, atol=0)
        assert float(found.exp().sum(1).sub(1).abs().max()) < 1e-12, "it is still a distribution"


def test_a_share_of_zero_is_the_scorer_itself():
    scorer, rows = tiny("lm"), torch.randn(2, 32)
    assert smoothed(scorer, 0.0) is scorer
    assert Smoothing(0.0, uniform(scorer.tokens))(rows) is rows
    lm, subtracted, _ = Fusion(scorer, scorer, FusionWeights(0.3, 0.3)).scorers(tiny("aed"))
    assert lm is scorer and subtracted is scorer
    _, subtracted, _ = Fusion(scorer, scorer, FusionWeights(0.3, 0.0, 0.0, 0.5)).scorers(tiny("aed"))
    assert isinstance(subtracted, NullScorer), "nothing is subtracted, so nothing is smoothed"


def test_what_is_impossible_has_a_bound_and_what_is_no_outcome_has_none():
    tokens = Tokens(("<b>", "<s>", "</s>", "a", "b"), blank=0, sos=1, eos=2)
    log_q = uniform(tokens)
    assert log_q.tolist() == pytest.approx([-math.inf, -math.inf, *[-math.log(3)] * 3])
    rows = torch.full((1, 5), -1e4, dtype=torch.float64)
    rows[:, 3] = -math.inf
    found = Smoothing(0.3, log_q)(rows)[0].tolist()
    assert found[2:] == pytest.approx([math.log(0.1)] * 3)
    assert found[:2] == pytest.approx([-1e4 + math.log(0.7)] * 2), "blank and sos: what the scorer says, but for 1 − ε"
    assert float(Smoothing(0.3, log_q)(torch.full((1, 5), -math.inf))[0, 0]) == -math.inf


def test_a_label_that_a_scorer_passes_over_stays_passed_over():
    rows = torch.tensor([[0.0, -1.0, 0.0]])
    found = Smoothing(0.5, torch.zeros(3).log_softmax(-1))(rows)
    assert found[0, 0] == 0 and found[0, 2] == 0
    assert float(found[0, 1]) == pytest.approx(math.log(0.5 * math.exp(-1) + 0.5 / 3))


@pytest.mark.parametrize("kind", ["internal", "rnnt", "lm"])
def test_scores_are_those_of_the_plain_formula(kind):
    model = {"internal": tiny("aed", 9), "rnnt": tiny("rnnt", 9), "lm": tiny("lm", 9)}[kind].double()
    scorer = {"internal": AttentionInternalLM, "rnnt": TransducerInternalLM, "lm": lambda m: m}[kind](model)
    with torch.no_grad():
        for share in (0.01, 0.5):
            for sequence in [(), (3, 3, 5), (2, 7)]:
                found = oracle.score_sequence(smoothed(scorer, share), sequence, end=True)
                assert found == pytest.approx(oracle.score_sequence(scorer, sequence, True, share), abs=1e-12)


def test_the_transducers_internal_lm_scores_no_end_and_shares_its_hosts_terms():
    model = tiny("rnnt", 9)
    internal = TransducerInternalLM(model)
    scorer = smoothed(internal, 0.2)
    assert isinstance(scorer, SharedPrediction) and scorer.host is model
    assert not isinstance(scorer, SharedStep)
    with torch.no_grad():
        rows, _ = scorer.start(2)
        assert torch.equal(scorer.rows_of(model.start(2)[0]), rows)
        assert not scorer.finish(rows).any()
        assert (rows[:, model.tokens.blank] == -math.inf).all()


def test_an_attention_decoders_internal_lm_still_takes_its_step_with_its_host():
    model = tiny("aed", 9)
    scorer = smoothed(AttentionInternalLM(model), 0.2)
    assert isinstance(scorer, SharedStep) and scorer.host is model
    memory = model.encode(torch.randn(1, 12, model.config.encoder.features), torch.tensor([12]))
    with torch.no_grad():
        _, state = model.start(memory)
        _, internal = scorer.start(1)
        labels = torch.tensor([4])
        (own, _), (rows, _) = scorer.step_both(labels, state, internal, memory)
        torch.testing.assert_close(own, model.step(labels, state, memory)[0])
        torch.testing.assert_close(rows, scorer.score(labels, internal)[0])


def test_a_background_is_given_for_these_tokens():
    with pytest.raises(BadInputError, match="in the model's own tokens"):
        smoothed(tiny("lm", 9), 0.1, torch.zeros(8))
    for share in (-0.1, 1.0):
        with pytest.raises(BadInputError, match="share of the background"):
            Smoothing(share, torch.zeros(3))
    with pytest.raises(BadInputError, match=r"background is a share and must be below 1"):
        FusionWeights(background=1.0)
    q = torch.tensor([0.7, 0.2, 0.1]).log()
    tokens = numbered_tokens(3, "attention")
    rows = smoothed(Certain(tokens, 1), 0.5, q).start(1)[0]
    assert rows[0, 0].exp().item() == pytest.approx(0.35)


# --- a decoder that would loop ----------------------------------------------------------------------------------------

END, RIGHT, LOOP = 0, (2, 3, 4, 5), 6
HATED = -16.7  # nats: what an internal LM, off its ground, gave each label of a loop


class Certain:
    """A scorer that is certain of one label, whatever came before."""

    def __init__(self, tokens, label):
        self.tokens, self.device, self.label = tokens, torch.device("cpu"), label

    def start(self, n):
        rows = torch.full((n, len(self.tokens)), -30.0)
        rows[:, self.label] = -1e-9
        return rows, torch.zeros(n, 1)

    def score(self, labels, state):
        return self.start(len(labels))

    def finish(self, rows):
        return rows[:, self.tokens.eos]


class Toy:
    """An attention decoder that says the right sentence, or with less conviction one label again and again."""

    tokens, device = numbered_tokens(40, "attention"), torch.device("cpu")

    def start(self, memory):
        return self._rows([()] * len(memory)), torch.zeros(len(memory), 13, dtype=torch.long)

    def step(self, labels, state, memory):
        """The state (n, 1 + 12) is how many labels there are, and which."""
        state = state.clone()
        state[torch.arange(len(labels)), state[:, 0] + 1] = labels
        state[:, 0] += 1
        return self._rows([tuple(row[1 : 1 + row[0]]) for row in state.tolist()]), state

    def _rows(self, sequences):
        rows = torch.full((len(sequences), len(self.tokens)), -9.0)
        for row, y in zip(rows, sequences, strict=True):
            if y == RIGHT[: len(y)]:
                row[RIGHT[len(y)] if len(y) < len(RIGHT) else END] = -1.5
            elif set(y) == {LOOP}:
                row[LOOP], row[END] = -2.3, -2.3
            if not y:
                row[LOOP] = -4.0  # it starts behind: a narrow beam does not see it
        return rows


class HatesTheLoop:
    """Its internal LM: no label surprises it, but for those of the loop."""

    tokens, device = Toy.tokens, Toy.device

    def start(self, n):
        rows = torch.full((n, len(self.tokens)), -2.7)
        rows[:, LOOP] = HATED
        return rows, torch.zeros(n, 1)

    def score(self, labels, state):
        return self.start(len(labels))

    def finish(self, rows):
        return rows[:, END]


@pytest.mark.parametrize("beam", [1, 2, 8])
def test_a_loop_that_the_internal_lm_hates_wins_without_smoothing_and_loses_with_it(beam):
    """Ranked by the mean score per label, −2.3 + μ · 16.7 beats −1.5 + μ · 2.7 from μ = 0.057 on."""
    options = AttentionOptions(beam=beam, length_normalisation=1.0, max_length=12)

    def best(weights):
        (found,) = AttentionSearch(Toy(), Fusion(None, HatesTheLoop(), weights), options)(torch.zeros(1, 1))
        return found[0].tokens

    assert best(FusionWeights()) == RIGHT
    loops = best(FusionWeights(subtracted=0.13))
    assert loops == RIGHT if beam == 1 else set(loops) == {LOOP}, "the wider the beam, the worse"
    for share in (0.3, 0.6):  # a label of the loop then costs at most log 40 − log ε
        assert best(FusionWeights(subtracted=0.13, background=share)) == RIGHT
