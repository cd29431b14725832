"""An attention decoder that waits until its encoder hears: CTC alone at first, then both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ilme.errors import BadInputError
from ilme.losses.ctc import ctc_loss
from ilme.models.aed import AED, PRESETS
from ilme.models.encoder import ctc_blank
from ilme.testing import numbered_tokens
from ilme.train.objectives import AedObjective
from ilme.train.options import AedOptions
from tests.train.test_joint_start import batch
from tests.train.tiny import V


def network() -> AED:
    torch.manual_seed(0)
    return AED(replace(PRESETS["tiny"], ctc=True), numbered_tokens(V, "attention"))


def test_the_decoder_waits_for_the_steps_of_listening() -> None:
    model, data = network(), batch(4)
    objective = AedObjective(model, AedOptions(ctc=0.3, listen=2)).train()
    for step in (1, 2):
        objective.at_step(step)
        loss = objective(*data)
        h, frames = model.encoder(*data[:2])
        assert model.ctc is not None
        torch.testing.assert_close(loss, ctc_loss(model.ctc, h, frames, *data[2:], blank=ctc_blank(model.tokens)))
        loss.backward()
    assert all(p.grad is None for p in [*model.rnn.parameters(), *model.attend.parameters()])
    objective.at_step(3)
    objective(*data).backward()
    assert all(p.grad is not None for p in model.parameters())
    objective.at_step(1)
    waiting = objective.eval()(*data)
    objective.at_step(3)
    torch.testing.assert_close(waiting, objective(*data))  # what is held out is measured the same all the time


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"aed\.ctc=0 leaves it out"):
        AedOptions(listen=5)
    with pytest.raises(BadInputError, match=r"aed\.listen=-1 must not be negative"):
        AedOptions(ctc=0.3, listen=-1)
    with pytest.raises(BadInputError, match="needs the network's CTC layer"):
        AedObjective(AED(PRESETS["tiny"], numbered_tokens(V, "attention")), AedOptions(ctc=0.3, listen=5))
