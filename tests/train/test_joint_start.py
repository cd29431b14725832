"""A joint network that starts from the CTC layer: about the same logits, at the right step, and it listens sooner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.errors import BadInputError
from ilme.models.rnnt import PRESETS, RNNT
from ilme.testing import numbered_tokens
from ilme.train.joint_start import start_joint
from ilme.train.objectives import RnntObjective
from ilme.train.options import RnntOptions
from tests.train.tiny import WIDTH, V, utterances


def network(**changes: object) -> RNNT:
    torch.manual_seed(0)
    config = replace(PRESETS["tiny"], ctc=True, **changes)  # type: ignore[arg-type]
    return RNNT(config, numbered_tokens(V, "transducer"))


def batch(count: int = 20) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features, labels = utterances(count)
    rows = [torch.tensor(row) for row in labels]
    return (
        pad_sequence(features, batch_first=True),
        torch.tensor([len(x) for x in features]),
        pad_sequence(rows, batch_first=True),
        torch.tensor([len(row) for row in rows]),
    )


@pytest.mark.parametrize("projection", [48, 64, 20])
def test_logits_are_those_of_the_ctc_layer(projection: int) -> None:
    """Through a layer as wide as the encoder, wider, and narrower (rank 12 fits in 20)."""
    model = network(projection=projection).eval()
    assert model.ctc is not None
    start_joint(model)
    h = torch.randn(5, 7, 48)
    h = torch.nn.functional.layer_norm(h, (48,))
    with torch.no_grad():
        expected = model.ctc(h)
        found = model.join(model.encoder_head(h), torch.zeros(model.config.joint))
    assert (found - expected).abs().max() < 0.2 * expected.abs().max()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8


def test_logits_are_those_of_a_ctc_layer_that_is_wider_than_the_joint_network() -> None:
    config = replace(PRESETS["tiny"], ctc=True, joint=48, projection=48)  # 48 encoder outputs, 80 output units
    model = RNNT(config, numbered_tokens(80, "transducer")).eval()
    assert model.ctc is not None
    start_joint(model)
    h = torch.nn.functional.layer_norm(torch.randn(5, 7, 48), (48,))
    with torch.no_grad():
        expected = model.ctc(h)
        found = model.join(model.encoder_head(h), torch.zeros(48))
        assert torch.allclose(found, model.ctc(torch.tanh(0.7 * h) / 0.7), atol=1e-4)
    assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.98
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8


def test_a_factorised_joint_starts_from_the_labels_of_the_ctc_layer() -> None:
    """Its labels are CTC's; its blank is never less likely, and rises and falls with CTC's."""
    model = network(hat=True).eval()
    assert model.ctc is not None
    start_joint(model)
    h = torch.nn.functional.layer_norm(torch.randn(50, 7, 48), (48,))
    with torch.no_grad():
        expected = model.ctc(h).log_softmax(-1)
        found = model.join(model.encoder_head(h), torch.zeros(model.config.joint)).log_softmax(-1)
    blanks = torch.stack([found[..., 0].flatten(), expected[..., 0].flatten()])
    assert (blanks[0] > blanks[1] - 0.1).all() and torch.corrcoef(blanks)[0, 1] > 0.9
    assert (found[..., 1:].argmax(-1) == expected[..., 1:].argmax(-1)).float().mean() > 0.8


def test_it_happens_once_after_the_steps_of_listening() -> None:
    model = network()
    objective = RnntObjective(model, RnntOptions(ctc=0.3, listen=2)).train()
    first = model.output.weight.clone()
    for step in (1, 2):
        objective.at_step(step)
        objective(*batch(4)).backward()
        assert model.output.weight.grad is None and model.ctc.weight.grad is not None  # type: ignore[union-attr]
    assert torch.equal(model.output.weight, first)
    objective.at_step(3)
    started = model.output.weight.clone()
    assert not torch.equal(started, first)
    objective(*batch(4)).backward()
    assert model.output.weight.grad is not None
    objective.at_step(4)
    assert torch.equal(model.output.weight, started)


@pytest.mark.slow
def test_it_listens_sooner() -> None:
    """The same network, data and number of steps; the loss without the auxiliary part."""
    found = {}
    for listen in (0, 40):
        model = network()
        objective = RnntObjective(model, RnntOptions(ctc=0.3, listen=listen))
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        data = batch()
        for step in range(1, 81):
            objective.train().at_step(step)
            optimiser.zero_grad()
            (objective(*data) / 20).backward()
            optimiser.step()
        with torch.no_grad():
            found[listen] = float(objective.eval()(*data)) / 20
    assert found[40] < found[0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"joint=8 must be at least the 12 output units, or .* the 48 encoder"):
        RnntObjective(network(joint=8), RnntOptions(ctc=0.3, listen=5))
    without = RNNT(PRESETS["tiny"], numbered_tokens(V, "transducer"))
    for options in (RnntOptions(ctc=0.3, listen=5), RnntOptions(ctc=0.3)):
        with pytest.raises(BadInputError, match="needs the network's CTC layer"):
            RnntObjective(without, options)
    with pytest.raises(BadInputError, match=r"rnnt\.ctc=0 leaves it out"):
        RnntOptions(listen=5)
    assert PRESETS["tiny"].encoder.features == WIDTH
