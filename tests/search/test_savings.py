"""What the transducer search leaves out to be fast must not change what it finds."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.packed import pack
from ilme.search import transducer as module
from ilme.search.gate import BlankGate
from ilme.search.transducer import TransducerOptions, TransducerSearch, TransducerStream
from tests.phrase_oracle import drawn_phrases
from tests.search.test_transducer import acoustics, language_model, transducer

cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "beam": st.integers(1, 6),
        "weights": st.sampled_from(
            [
                (0, 0, 0),
                (0.4, 0, 0),
                (0.4, 0.3, 0),
                (0.3, 0.6, 0.5),
                (0, 0.5, -0.2),
                (0, 0, 0, 0, 1),
                (0.3, 0.6, 0.5, 0.1, 2),
            ]
        ),
        "blank_aware": st.booleans(),
    }
)


def everything(self, beam, rows, logp, floor):
    return rows, logp


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases)
def test_the_bound_before_the_lm_changes_nothing(case):
    model, lm = transducer(case["seed"], units=6), language_model(case["seed"], units=6)
    phrases, _ = drawn_phrases(case["seed"], model.tokens)
    fusion = Fusion(lm, TransducerInternalLM(model), FusionWeights(*map(float, case["weights"])), phrases=phrases)
    search = TransducerSearch(model, fusion, TransducerOptions(beam=case["beam"], blank_aware=case["blank_aware"]))
    f, lengths = acoustics(case["seed"], 9, batch=2), torch.tensor([9, 6])
    found = search(f, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransducerStream, "_promising", everything)
        without_bound = search(f, lengths)
    for ours, theirs in zip(found, without_bound, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_packed_networks_find_what_unpacked_ones_find(seed):
    model = transducer(seed, units=6, dtype=torch.float32)
    lm = language_model(seed, units=6, dtype=torch.float32)
    f, lengths = acoustics(seed, 12, batch=2, dtype=torch.float32), torch.tensor([12, 7])

    def decode(model, lm):
        fusion = Fusion(lm, TransducerInternalLM(model), FusionWeights(0.4, 0.2))
        return TransducerSearch(model, fusion, TransducerOptions(beam=8))(f, lengths)

    plain = decode(model, lm)
    packed = decode(pack(copy.deepcopy(model)), pack(copy.deepcopy(lm)))
    for ours, theirs in zip(packed, plain, strict=True):
        assert ours[0].tokens == theirs[0].tokens
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-4)


class Fixed:
    """A scorer whose every row is the same: one label is all but impossible, and the blank's place is ordinary."""

    def __init__(self, tokens, rare):
        self.tokens, self.device = tokens, torch.device("cpu")
        self.row = torch.full((len(tokens),), -2.0, dtype=torch.float64)
        self.row[rare] = -40.0

    def start(self, n):
        return self.row.expand(n, -1), torch.zeros(n)

    def score(self, labels, state):
        return self.row.expand(len(labels), -1), state

    def finish(self, rows):
        return rows.new_zeros(len(rows))


@pytest.mark.parametrize("rare", [1, 2, 3])
def test_the_bound_knows_every_label_that_the_subtracted_lm_finds_improbable(rare):
    """Where the blank is all but sure, subtracting makes such a label win: the bound must not take it for the blank."""
    model = transducer(2, units=4)
    assert model.tokens.blank == 0
    with torch.no_grad():
        model.output.bias[0] += 8.0
    fusion = Fusion(None, Fixed(model.tokens, rare), FusionWeights(0.0, 0.5))
    search = TransducerSearch(model, fusion, TransducerOptions(beam=1))
    f, lengths = acoustics(2, 6), torch.tensor([6])
    found = search(f, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransducerStream, "_promising", everything)
        without_bound = search(f, lengths)
    assert [h.tokens for h in found[0]] == [h.tokens for h in without_bound[0]]
    assert rare in found[0][0].tokens


def test_without_a_threshold_no_gate_is_made(monkeypatch):
    model, f, lengths = transducer(2, units=4), acoustics(2, 6), torch.tensor([6])
    made = []
    monkeypatch.setattr(module, "BlankGate", lambda *given: made.append(given) or BlankGate(*given))
    TransducerSearch(model, options=TransducerOptions(beam=2))(f, lengths)
    TransducerSearch(model, options=TransducerOptions(beam=2, blank_gate=0.1))(f[:, :0], torch.tensor([0]))
    assert not made
    TransducerSearch(model, options=TransducerOptions(beam=2, blank_gate=0.1))(f, lengths)
    assert len(made) == 1 and made[0][1].shape[1] == 6


def test_nothing_is_recorded_on_a_cpu():
    model = transducer(2, units=4)
    search = TransducerSearch(model)
    assert all(getattr(network, "capturable", False) for network in (model, search.lm, search.subtracted))
    assert not search.records and type(search.stream(2)) is TransducerStream
