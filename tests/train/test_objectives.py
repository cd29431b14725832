"""Internal-LM training beside the networks' own losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ilme.errors import BadInputError
from ilme.train.journal import read_metrics
from ilme.train.monitor import internal_lm_perplexity
from ilme.train.objectives import AedObjective, RnntObjective
from ilme.train.options import AedOptions, RnntOptions

from .test_joint_start import batch
from .tiny import make_objective, make_trainer, utterances

KINDS: dict[str, tuple[Any, Any]] = {"rnnt": (RnntObjective, RnntOptions), "aed": (AedObjective, AedOptions)}


def objective(kind: str, alpha: float | None) -> Any:
    """A fresh network with its loss; None leaves the option out."""
    model = make_objective(kind).model
    make, options = KINDS[kind]
    return make(model, options() if alpha is None else options(ilmt=alpha)).train()


def loss_and_gradients(kind: str, alpha: float | None) -> list[torch.Tensor]:
    made = objective(kind, alpha)
    torch.manual_seed(1)
    loss = made(*batch(6))
    loss.backward()
    return [loss.detach(), *(p.grad for p in made.model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
def test_alpha_0_changes_no_bit(kind: str) -> None:
    for found, wanted in zip(loss_and_gradients(kind, 0.0), loss_and_gradients(kind, None), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_and_the_part_is_told_apart(kind: str) -> None:
    made, plain = objective(kind, 0.5), objective(kind, None)
    loss, alone = made(*batch(6)).detach(), plain(*batch(6)).detach()
    assert float(loss) == pytest.approx(float(alone) + 0.5 * float(made.beside["ilm_loss"]), rel=1e-5)
    assert not made.beside["ilm_loss"].requires_grad and not plain.beside
    made.eval()
    with torch.no_grad():
        assert float(made(*batch(6))) == pytest.approx(float(plain.eval()(*batch(6))), rel=1e-6)  # it is not evaluated


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_audio_passes_through_learns_nothing_from_it(kind: str) -> None:
    with_it, without = objective(kind, 2.0), objective(kind, None)
    for made in (with_it, without):
        made(*batch(6)).backward()
    language = set(with_it.model.language_parameters())
    theirs = dict(without.model.named_parameters())
    for name, p in with_it.model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(p.grad, theirs[name].grad, rtol=1e-4, atol=1e-6) == (name not in language), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_internal_lm_of_a_tiny_training_becomes_one(tmp_path: Path, kind: str) -> None:
    _, labels = utterances()
    perplexities = {}
    for alpha in (0.0, 2.0):
        trainer = make_trainer(tmp_path / str(alpha), kind, budget=400, steps=60, evaluate_every=60, save_every=60)
        trainer.objective.options = KINDS[kind][1](ilmt=alpha)
        trainer.run()
        perplexities[alpha] = internal_lm_perplexity(trainer.objective.model, labels)
    assert perplexities[2.0] < 0.9 * perplexities[0.0], perplexities
    shown = [row["ilm_loss"] for row in read_metrics(tmp_path / "2.0" / "metrics.jsonl") if "ilm_loss" in row]
    assert len(shown) == 12 and shown[-1] < shown[0]
    assert not any("ilm_loss" in row for row in read_metrics(tmp_path / "0.0" / "metrics.jsonl"))
    assert math.isfinite(trainer.progress.best or math.nan)


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"rnnt\.ilmt=-1"):
        RnntOptions(ilmt=-1)
    with pytest.raises(BadInputError, match=r"aed\.ilmt=-1"):
        AedOptions(ilmt=-1)
