"""The estimate of log P(blank) from a few units: exact where the shortlist has them all, near where it does not."""

from __future__ import annotations

import types

import pytest
import torch

from ilme.errors import BadInputError
from ilme.search import gate as module
from ilme.search.gate import BlankGate
from tests.search.test_transducer import acoustics, transducer

UNITS = 9


@pytest.fixture(params=[2, 512], ids=lambda n: f"{n} frames at once")
def model(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", request.param)
    return transducer(3, UNITS)


@torch.no_grad()
def test_all_units_give_the_probability_itself(model):
    """Utterances 0 and 2 have two and one hypotheses, whose language terms are not those of the empty sequence."""
    f = acoustics(3, 5, batch=3)
    _, state = model.start(3)
    g, _ = model.predict(torch.tensor([2, 5, 7]), state)
    utterances = torch.tensor([0, 0, 2])
    for shortlist in (UNITS - 1, UNITS + 20):
        gate = BlankGate(model, f, 0.1, shortlist)
        assert gate.units.shape == (3, 5, UNITS) and gate.threshold == 0.1
        for t in range(5):
            exact = model.join(f[utterances, t], g).log_softmax(-1)[:, model.tokens.blank]
            torch.testing.assert_close(gate.log_blank(t, utterances, f[utterances, t], g), exact)


@torch.no_grad()
def test_the_rest_of_the_units_is_that_of_the_empty_sequence(model):
    """With two units of nine: blank and the two most likely as they are now, the six others as they were at first."""
    f = acoustics(4, 4, batch=2)
    first, state = model.start(1)
    g, _ = model.predict(torch.tensor([4]), state)
    gate = BlankGate(model, f, 0.1, 2)
    for b in range(2):
        for t in range(4):
            z, now = model.join(f[b, t][None], first)[0], model.join(f[b, t][None], g)[0]
            order = [i for i in z.argsort(descending=True).tolist() if i != model.tokens.blank]
            rest = z[order[2:]].logsumexp(0)
            kept = torch.stack([now[model.tokens.blank], *now[order[:2]], rest])
            assert gate.units[b, t].tolist()[0] == model.tokens.blank
            assert set(gate.units[b, t].tolist()[1:]) == set(order[:2])
            found = gate.log_blank(t, torch.tensor([b]), f[b, t][None], g)
            torch.testing.assert_close(found[0], kept.log_softmax(0)[0])


@torch.no_grad()
def test_of_a_factorised_transducer_it_is_never_too_sure_of_blank():
    f = acoustics(5, 6)
    model = transducer(3, UNITS, hat=True)
    g, _ = model.predict(torch.tensor([4]), model.start(1)[1])
    for shortlist, exact in ((2, False), (UNITS - 1, True)):
        gate = BlankGate(model, f, 0.1, shortlist)
        for t in range(6):
            found = gate.log_blank(t, torch.tensor([0]), f[:, t], g)
            blank = model.join(f[:, t], g).log_softmax(-1)[:, model.tokens.blank]
            assert torch.allclose(found, blank) if exact else (found <= blank + 1e-12).all()


def test_a_model_that_cannot_compute_some_units_is_named():
    with pytest.raises(BadInputError, match="needs a model with join_some; SimpleNamespace has none"):
        BlankGate(types.SimpleNamespace(), torch.zeros(1, 1, 1), 0.1, 4)
