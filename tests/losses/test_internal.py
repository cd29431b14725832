"""The internal LM's own loss: the internal LM's numbers, and gradients where they belong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ilme.ilm import internal_lm
from ilme.losses.internal import attention_internal_loss, transducer_internal_loss
from tests.models.test_networks import network
from tests.oracle import score_sequence

SENTENCES = [[3, 7, 2, 9], [5], [8, 8, 4]]


def padded() -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(y) for y in SENTENCES]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=6), torch.tensor([4, 1, 3])


def loss_of(model: Any) -> Tensor:
    labels, lengths = padded()
    if model.kind == "rnnt":
        return transducer_internal_loss(model, model.predict_all(labels), labels, lengths)
    return attention_internal_loss(model, labels, lengths)


@pytest.mark.parametrize(("kind", "changes"), [("rnnt", {}), ("rnnt", {"hat": True}), ("aed", {})])
def test_it_is_the_internal_lms_score(kind: str, changes: dict[str, Any]) -> None:
    """Label by label in float64, as a search has it."""
    model = network(kind, **changes)
    with torch.no_grad():
        scorer = internal_lm(model, "removed")
        wanted = -sum(score_sequence(scorer, y, end=kind == "aed") for y in SENTENCES)
    assert loss_of(model).item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_gradients_reach_what_the_internal_lm_uses_and_nothing_else(kind: str) -> None:
    model = network(kind, ctc=True)
    loss_of(model).backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == set(model.language_parameters())
    if kind == "rnnt":
        assert not model.output.weight.grad[model.tokens.blank].any()


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_gradients_match_finite_differences(kind: str) -> None:
    model = network(kind)
    loss_of(model).backward()
    step = 1e-6
    for name in ("output.weight", "output.bias"):
        parameter = dict(model.named_parameters())[name]
        place = (3, *[5] * (parameter.dim() - 1))
        found = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[place] += sign * step
                found.append(loss_of(model).item())
                parameter[place] -= sign * step
        assert (found[0] - found[1]) / (2 * step) == pytest.approx(parameter.grad[place].item(), rel=1e-6)
