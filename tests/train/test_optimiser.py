"""Schedules, groups, frozen parts, weights to start from, and the moving average."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError, VocabularyMismatchError
from ilme.models import build, preset
from ilme.models.checkpoint import save_model
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens
from ilme.train.optimiser import MovingAverage, freeze, learning_rate, make_optimiser, set_rate, start_from
from ilme.train.options import OptimiserOptions, WarmStart

from .tiny import make_objective, make_trainer


@pytest.mark.parametrize(
    ("decay", "halfway", "end"),
    [
        ("constant", 1.0, 1.0),
        ("linear", 0.55, 0.1),
        ("cosine", 0.55, 0.1),
        ("inverse_sqrt", (10 / 60) ** 0.5, (10 / 110) ** 0.5),
    ],
)
def test_rate_rises_then_falls(decay: str, halfway: float, end: float) -> None:
    options = OptimiserOptions(rate=1.0, warmup=10, decay=decay, final=0.1)  # type: ignore[arg-type]
    rates = [learning_rate(step, 110, options) for step in range(1, 111)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[59] == pytest.approx(halfway) and rates[109] == pytest.approx(end)
    assert all(a >= b for a, b in pairwise(rates[9:]))


def test_rate_rises_once_more_where_a_part_starts_later() -> None:
    options = OptimiserOptions(rate=1.0, warmup=10, decay="linear", final=0.0)
    plain, again = ([learning_rate(step, 110, options, again=a) for step in range(1, 111)] for a in (0, 50))
    assert again[:50] == plain[:50] and again[59:] == plain[59:]
    assert again[50:59] == pytest.approx([r * i / 10 for i, r in enumerate(plain[50:59], 1)])


def test_groups_follow_patterns_and_leave_biases_undecayed() -> None:
    model = make_objective("rnnt").model
    freeze(model, ["predictor.*"])
    options = OptimiserOptions(rate=1.0, layer_rates={"encoder.*": 0.1, "enc*": 5.0}, weight_decay=0.5)
    optimiser = make_optimiser(model, options)
    set_rate(optimiser, 2.0)
    found = {id(p): (g["lr"], g["weight_decay"]) for g in optimiser.param_groups for p in g["params"]}
    by_name = {name: found.get(id(p)) for name, p in model.named_parameters()}
    assert by_name["encoder.blocks.0.lstm.weight_ih_l0"] == (0.2, 0.5)
    assert by_name["encoder.blocks.0.lstm.bias_ih_l1"] == (0.2, 0.0)
    assert by_name["encoder_head.1.weight"] == (10.0, 0.5)  # the first pattern that matches counts
    assert by_name["output.weight"] == (2.0, 0.5)
    assert by_name["predictor.embedding.weight"] is None
    set_rate(optimiser, 2.0, still=True)
    rates = {id(p): g["lr"] for g in optimiser.param_groups for p in g["params"]}
    assert rates[id(model.encoder.blocks[0].lstm.weight_ih_l0)] == 0 and rates[id(model.output.weight)] == 2.0


def test_trained_layers_stand_still_until_they_thaw(tmp_path: Path) -> None:
    def encoder_after(steps: int) -> Tensor:
        rates = OptimiserOptions(warmup=0, layer_rates={"encoder.*": 0.5}, thaw=2)
        trainer = make_trainer(tmp_path / str(steps), "rnnt", rates=rates, steps=steps)
        trainer.run()
        return trainer.objective.model.encoder.blocks[0].lstm.weight_ih_l0.detach()  # type: ignore[no-any-return]

    start = make_objective("rnnt").model.encoder.blocks[0].lstm.weight_ih_l0
    assert torch.equal(encoder_after(2), start) and not torch.equal(encoder_after(3), start)
    with pytest.raises(BadInputError, match="layer_rates say"):
        OptimiserOptions(thaw=5)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    model = make_objective("rnnt").model
    with pytest.raises(BadInputError, match=r"'decoder\.\*' matches no parameter; names start with encoder"):
        freeze(model, ["decoder.*"])
    with pytest.raises(BadInputError, match="layer_rates"):
        make_optimiser(model, OptimiserOptions(layer_rates={"top.*": 0.1}))
    freeze(model, ["*"])
    with pytest.raises(BadInputError, match="nothing to train"):
        make_optimiser(model, OptimiserOptions())


def test_starts_from_the_named_parts_of_another_model(tmp_path: Path) -> None:
    theirs, ours = make_objective("rnnt").model, make_objective("rnnt").model
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(1.0)
    before = {name: p.clone() for name, p in ours.named_parameters()}
    save_model(tmp_path, theirs)
    copied = start_from(ours, WarmStart(str(tmp_path), ("encoder.*",)))
    assert copied == sum(p.numel() for p in ours.encoder.parameters())
    for name, p in ours.named_parameters():
        source = dict(theirs.named_parameters()) if name.startswith("encoder.") else before
        assert torch.equal(p, source[name]), name
    with pytest.raises(BadInputError, match="match no weights"):
        start_from(ours, WarmStart(str(tmp_path), ("decoder.*",)))
    with pytest.raises(CheckpointError, match="has no weights"):
        start_from(make_objective("aed").model, WarmStart(str(tmp_path), ("attend.*",)))


def test_weights_of_labels_are_not_taken_from_a_model_over_other_tokens(tmp_path: Path) -> None:
    pieces = numbered_tokens(12, "transducer").pieces
    swapped = (*pieces[:4], pieces[5], pieces[4], *pieces[6:])
    ours, theirs = (build("rnnt", preset("rnnt", "tiny"), Tokens(p, blank=0)) for p in (pieces, swapped))
    save_model(tmp_path, theirs)
    with pytest.raises(VocabularyMismatchError, match=r"differ at id 4.* take other parts"):
        start_from(ours, WarmStart(str(tmp_path), ("*",)))
    assert start_from(ours, WarmStart(str(tmp_path), ("encoder.*", "predictor.rnn.*"))) > 0


def test_average_follows_its_formula_and_swaps_back() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = MovingAverage(model, 0.5)
        expected = 0.0
        for n, value in enumerate([1.0, 2.0, 4.0], start=1):
            model.weight.fill_(value)
            average.update()
            decay = min(0.5, (1 + n) / (10 + n))
            expected += (1 - decay) * (value - expected)
    assert average.values["weight"].item() == pytest.approx(expected)
    average.swap()
    assert model.weight.item() == pytest.approx(expected) and average.values["weight"].item() == 4.0
    average.swap()
    assert model.weight.item() == 4.0
