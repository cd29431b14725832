"""An attention decoder that starts from the CTC layer: it waits, then says what CTC says of what it attends to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ilme.errors import BadInputError
from ilme.losses.ctc import ctc_loss
from ilme.models.aed import AED, PRESETS
from ilme.models.encoder import ctc_blank
from ilme.testing import numbered_tokens
from ilme.train.decoder_start import start_decoder
from ilme.train.objectives import AedObjective
from ilme.train.options import AedOptions
from tests.train.test_joint_start import batch
from tests.train.tiny import V


def network(layers: int = 1) -> AED:
    torch.manual_seed(0)
    config = replace(PRESETS["tiny"], ctc=True, decoder_layers=layers)
    return AED(config, numbered_tokens(V, "attention"))


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_it_says_of_a_context_what_ctc_says(layers: int) -> None:
    model = network(layers)
    ctc = model.ctc
    assert ctc is not None
    ctc.weight.mul_(4)
    start_decoder(model)
    context, end = torch.randn(300, ctc.in_features), ctc_blank(model.tokens)
    h, _ = model.decode(torch.full((300,), 3), context, model.rnn.zero_state(300))
    labels = [v for v in range(V) if v != end]
    found, wanted = model.output(h)[:, labels], ctc(context)[:, labels]
    assert torch.corrcoef(torch.stack([found.flatten(), wanted.flatten()]))[0, 1] > 0.85
    assert found.std() == pytest.approx(wanted.std().item(), rel=0.2)


def test_the_decoder_waits_and_starts_once() -> None:
    model, data = network(), batch(4)
    objective = AedObjective(model, AedOptions(ctc=0.3, listen=2, guide=10)).train()
    first = model.output.weight.detach().clone()
    for step in (1, 2):
        objective.at_step(step)
        loss = objective(*data)
        h, frames = model.encoder(*data[:2])
        assert model.ctc is not None
        torch.testing.assert_close(loss, ctc_loss(model.ctc, h, frames, *data[2:], blank=ctc_blank(model.tokens)))
        loss.backward()
    assert all(p.grad is None for p in [*model.rnn.parameters(), *model.attend.parameters()])
    assert torch.equal(model.output.weight, first)
    objective.at_step(3)
    started = model.output.weight.detach().clone()
    assert not torch.equal(started, first)
    objective(*data).backward()
    assert all(p.grad is not None for p in model.parameters())
    objective.at_step(4)
    assert torch.equal(model.output.weight, started)
    objective.at_step(1)
    waiting = objective.eval()(*data)
    objective.at_step(5)
    torch.testing.assert_close(waiting, objective(*data))  # what is held out is measured the same all the time


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"aed\.ctc=0 leaves it out"):
        AedOptions(listen=5)
    with pytest.raises(BadInputError, match=r"aed\.listen=-1 must not be negative"):
        AedOptions(ctc=0.3, listen=-1)
    tokens, options = numbered_tokens(V, "attention"), AedOptions(ctc=0.3, listen=5)
    with pytest.raises(BadInputError, match="needs the network's CTC layer"):
        AedObjective(AED(PRESETS["tiny"], tokens), options)
    with pytest.raises(BadInputError, match="decoder_hidden=16 must be at least the 48"):
        AedObjective(AED(replace(PRESETS["tiny"], ctc=True, decoder_hidden=16), tokens), options)
