"""What the loop does beside learning: bad batches, early stops, accumulation, perplexity, pictures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ilme.errors import BadInputError
from ilme.ilm.attention import AttentionInternalLM
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.checkpoint import load_checkpoint
from ilme.search.rescoring import sequence_scores
from ilme.train.graphs import graphs_obstacle
from ilme.train.journal import draw_curves, read_metrics
from ilme.train.loop import Trainer, TrainingStoppedError
from ilme.train.monitor import internal_lm_perplexity
from ilme.train.objectives import recompute_encoder
from ilme.train.options import LoopOptions, OptimiserOptions
from ilme.train.runs import SpeechData
from ilme.train.sources import endless

from .tiny import make_objective, make_trainer, utterances


def poison(trainer: Trainer, steps: set[int]) -> None:
    """Makes the features of some steps NaN."""
    load = trainer.source.load  # type: ignore[attr-defined]

    def poisoned(indices: Any) -> Any:
        batch = load(indices)
        return replace(batch, features=batch.features * torch.nan) if trainer.progress.step in steps else batch

    trainer.source.load = poisoned  # type: ignore[attr-defined]


def test_bad_batch_is_written_out_and_its_step_skipped(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=6, average=0.9)
    poison(trainer, {3})
    seen = []
    plain = trainer._step

    def step(batches: Any) -> Any:
        before = [p.clone() for p in trainer.objective.parameters()]
        done = plain(batches)
        moved = any(not torch.equal(a, b) for a, b in zip(before, trainer.objective.parameters(), strict=True))
        seen.append((trainer.progress.step, moved))
        return done

    trainer._step = step  # type: ignore[method-assign]
    progress = trainer.run()
    assert seen == [(1, True), (2, True), (3, False), (4, True), (5, True), (6, True)]
    assert (progress.bad_total, progress.bad_in_a_row) == (1, 0)
    (row,) = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert row["step"] == 3 and row["loss"] == "nan" and set(row["ids"]) <= {str(i) for i in range(20)} and row["ids"]
    assert all(torch.isfinite(p).all() for p in trainer.objective.parameters())


def test_too_many_bad_batches_in_a_row_stop_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=20, bad_steps=3, save_every=2)
    poison(trainer, set(range(5, 30)))
    with pytest.raises(TrainingStoppedError, match=r"3 steps in a row .* step 7, loss nan.*step-00000006"):
        trainer.run()


def test_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=50, evaluate_every=2, save_every=50, patience=2)
    losses = iter([3.0, 2.0, 2.5, 2.4, 1.0])
    trainer._held_out_loss = lambda: next(losses)  # type: ignore[method-assign]
    progress = trainer.run()
    assert (progress.step, progress.best, progress.best_step) == (8, 2.0, 4)
    assert [p.name for p in trainer.snapshots.all()] == ["step-00000008"]


def test_a_held_out_loss_that_is_not_finite_is_never_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, steps=50, evaluate_every=2, save_every=50, patience=2, tensorboard=True)
    losses = iter([math.nan, 3.0, math.inf, math.nan, 1.0])
    trainer._held_out_loss = lambda: next(losses)  # type: ignore[method-assign]
    exported: list[int] = []
    trainer.export = lambda model: exported.append(trainer.progress.step)
    progress = trainer.run()
    assert (progress.step, progress.best, progress.best_step) == (8, 3.0, 4) and exported == [4]
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "held_out_loss" in row]
    assert [row["held_out_loss"] for row in rows] == ["nan", 3.0, "inf", "nan"]
    assert [row.get("best") for row in rows] == [None, 3.0, 3.0, 3.0]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()  # which JSON does not have
    told = capsys.readouterr().err
    assert "step 2: held-out loss nan, which is not finite: it counts as no improvement" in told
    assert "stopped early at step 8: no held-out loss was better than that of step 4" in told
    assert (tmp_path / "curves.png").is_file()


def test_the_last_weights_can_be_the_model(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=7, evaluate_every=2, save_every=50, choose="last")
    losses = iter([3.0, 2.0, math.nan, 2.5])
    trainer._held_out_loss = lambda: next(losses)  # type: ignore[method-assign]
    exported: list[int] = []
    trainer.export = lambda model: exported.append(trainer.progress.step)
    progress = trainer.run()
    assert exported == [2, 4, 7] and (progress.best, progress.best_step) == (2.0, 4)
    with pytest.raises(BadInputError, match="best or last"):
        LoopOptions(choose="worst")  # type: ignore[arg-type]


def test_without_a_finite_held_out_loss_the_last_weights_are_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, steps=50, evaluate_every=2, save_every=50, patience=3)
    trainer._held_out_loss = lambda: math.nan  # type: ignore[method-assign]
    progress = trainer.run()
    assert (progress.step, progress.best, progress.since_best) == (6, None, 3)
    model = load_checkpoint(tmp_path, "rnnt").model
    assert torch.equal(model.output.weight, trainer.objective.model.output.weight)
    told = capsys.readouterr().err
    assert "no held-out loss was finite: the model is that of step 6, and nothing measured it" in told
    assert "stopped early at step 6: no held-out loss was finite" in told


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_weights_that_are_not_finite_are_neither_saved_nor_exported(tmp_path: Path, average: float) -> None:
    trainer = make_trainer(tmp_path, steps=50, evaluate_every=4, save_every=4, average=average)
    plain = trainer._step

    def diverging(batches: Any) -> Any:
        done = plain(batches)
        if trainer.progress.step == 6:
            trainer.objective.model.output.weight.data[0, 0] = torch.inf
            if trainer.updates.average is not None:
                trainer.updates.average.update()
        return done

    trainer._step = diverging  # type: ignore[method-assign]
    with pytest.raises(
        TrainingStoppedError,
        match=r"after step 8 the weights are not finite \(1 of the .* numbers of output\.weight\).*"
        r"the model is that of step 4, .*step-00000004",
    ):
        trainer.run()
    assert [p.name for p in trainer.snapshots.all()] == ["step-00000004"]
    assert all(value.isfinite().all() for value in load_checkpoint(tmp_path, "rnnt").model.state_dict().values())
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["held_out_loss"] for row in rows if row["step"] == 8 and "held_out_loss" in row] == ["nan"]


def test_stops_when_its_time_is_up_and_goes_on_later(tmp_path: Path) -> None:
    progress = make_trainer(tmp_path, steps=8, minutes=1e-6).run()
    assert progress.step == 1 and progress.best is not None
    assert load_checkpoint(tmp_path, "rnnt").kind == "rnnt"  # there is a model to use, however short the run
    assert make_trainer(tmp_path, steps=8).run(resume=True).step == 8


def test_a_budget_ends_the_run_with_its_rate_fallen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rates = [0.0], []
    monkeypatch.setattr("ilme.train.loop.time.monotonic", lambda: clock[0])

    def timed(seconds: float) -> Trainer:
        trainer = make_trainer(tmp_path, steps=10**6)
        trainer.loop = replace(trainer.loop, budget=40 / 60, save_every=10, evaluate_every=10**6)
        trainer.rates = replace(trainer.rates, warmup=4, decay="cosine", final=0.0)
        plain = trainer._step

        def step(batches: Any) -> Any:
            rates.append(trainer._rate(trainer.progress.step))
            done = plain(batches)
            clock[0] += seconds
            return done

        trainer._step = step  # type: ignore[method-assign]
        return trainer

    first = timed(1.0)  # a step takes a second, so 40 steps fit
    first.loop = replace(first.loop, minutes=19.5 / 60)
    assert first.run().step == 20 and not first.finished and first.foreseen == 40
    second = timed(2.0)  # the machine is busier now: 10 steps for the second half of the budget
    progress = second.run(resume=True)
    assert (progress.step, progress.seconds) == (30, 40.0) and second.finished
    peak = second.rates.rate
    assert rates[3] == peak and 0.4 * peak < rates[19] < 0.7 * peak and rates[-1] < 0.02 * peak
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert load_checkpoint(tmp_path, "rnnt").kind == "rnnt"
    assert timed(1.0).run(resume=True).step == 30  # nothing is left to do


def test_accumulation_gives_the_gradient_of_the_joined_batch(tmp_path: Path) -> None:
    whole, parts = make_trainer(tmp_path / "a", steps=1, budget=4000), make_trainer(tmp_path / "b", steps=1, budget=60)
    count = sum(1 for _ in parts.source)
    parts.source.load_state_dict({"epoch": 0, "position": 0, "seed": 0, "world_size": 1})
    parts.updates.loop = replace(parts.loop, accumulate=count)
    results = []
    for trainer in (whole, parts):
        trainer.progress.step = 1
        done = trainer._step(endless(trainer.source))
        results.append(torch.tensor([done.loss, done.gradient, done.hours]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_enlarging_the_loss_for_the_backward_pass_changes_no_update(tmp_path: Path) -> None:
    plain, enlarged = make_trainer(tmp_path / "a", steps=2), make_trainer(tmp_path / "b", steps=2)
    enlarged.updates.enlarged = 1024.0
    results = []
    for trainer in (plain, enlarged):
        trainer.progress.step = 1
        done = trainer._step(endless(trainer.source))
        weights = torch.cat([p.detach().flatten() for p in trainer.objective.model.parameters()])
        results.append((torch.tensor([done.loss, done.gradient]), weights))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_writes_perplexity_and_draws_its_curves(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, ilm_every=2, log_every=2, tensorboard=True)
    _, labels = utterances()
    trainer.perplexity = lambda model: {"ilm_ppl": internal_lm_perplexity(model, labels), "source_lm_ppl": 7.0}
    trainer.run()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    measured = [row for row in rows if "ilm_ppl" in row]
    assert [row["step"] for row in measured] == [2, 4] and all(row["hours"] > 0 for row in measured)
    assert all(1 < row["ilm_ppl"] < 100 and row["source_lm_ppl"] == 7.0 for row in measured)
    assert {"loss", "rate", "gradient", "epoch", "seconds", "hours_per_second"} <= rows[0].keys()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert any((tmp_path / "tensorboard").iterdir())
    (tmp_path / "empty.jsonl").write_text('{"step": 1, "hours"')  # half a line
    assert draw_curves(tmp_path / "empty.jsonl", tmp_path / "none.png") is None


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_perplexity_is_that_of_the_internal_lm(kind: str) -> None:
    model = make_objective(kind).model.eval()
    _, labels = utterances(5)
    scorer = TransducerInternalLM(model) if kind == "rnnt" else AttentionInternalLM(model)
    ends = kind == "aed"
    scores = sequence_scores(scorer, labels, finish=ends)
    units = sum(len(y) + ends for y in labels)
    wanted = torch.exp(-scores.sum() / units)
    assert internal_lm_perplexity(model, labels, batch=2) == pytest.approx(float(wanted), rel=1e-4)
    with pytest.raises(BadInputError, match="no text"):
        internal_lm_perplexity(model, [[]])


def test_recomputing_the_encoder_changes_no_gradient() -> None:
    features, labels = utterances(2)
    x = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
    y = torch.nn.utils.rnn.pad_sequence([torch.tensor(u) for u in labels], batch_first=True)
    sizes = torch.tensor([len(f) for f in features]), torch.tensor([len(u) for u in labels])
    grads = []
    for again in (False, True):
        objective = make_objective("rnnt")
        if again:
            recompute_encoder(objective.model)
        grads.append(torch.autograd.grad(objective(x, sizes[0], y, sizes[1]), list(objective.parameters())))
    torch.testing.assert_close(grads[1], grads[0])


def test_graphs_that_cannot_be_recorded_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, steps=2, graphs=True, log_every=1)
    if trainer.fabric.device.type == "cuda":
        pytest.skip("on a CUDA device they are recorded")
    assert trainer.run().step == 2
    assert (
        capsys.readouterr().err.count("loop.graphs has no effect: it needs a CUDA device, and this run is on cpu") == 1
    )
    make_trainer(tmp_path / "without", steps=1).run()
    assert "loop.graphs" not in capsys.readouterr().err
    assert graphs_obstacle("cuda", 1) is None
    assert graphs_obstacle("cuda", 8) == "it needs one process, and this run has 8"


def test_options_say_what_is_wrong() -> None:
    with pytest.raises(BadInputError, match=r"loop\.keep must be at least 1"):
        LoopOptions(keep=0)
    with pytest.raises(BadInputError, match="there are encoder and decoder"):
        LoopOptions(recompute=("joint",))
    for name, value in (("beta1", -1.0), ("beta1", 1.0), ("beta2", -0.1)):
        with pytest.raises(BadInputError, match=r"optimiser\.beta1=.*: must be at least 0 and less than 1"):
            OptimiserOptions(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=r"data\.utterances must not be negative, got -1"):
        SpeechData(utterances=-1)
