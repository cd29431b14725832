"""Training of one network of a study: from its plan to an exported model, within the time that is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ilme import models
from ilme.errors import BadInputError
from ilme.runtime.configs import changed_config
from ilme.runtime.files import write_json_lines
from ilme.runtime.tensors import read_header
from ilme.study.config import NetworkPlan
from ilme.study.provenance import commit, versions
from ilme.study.runner import Study, UnfinishedError, file_digest, used_fields
from ilme.tokens import Tokens
from ilme.train.journal import read_metrics
from ilme.train.loop import Trainer
from ilme.train.objectives import Objective
from ilme.train.optimiser import start_from
from ilme.train.options import LoopOptions, OptimiserOptions, WarmStart
from ilme.train.sources import BatchSource

__all__ = [
    "Course",
    "fresh_network",
    "keep_earlier_journal",
    "network_config",
    "options_of",
    "plan_inputs",
    "run_course",
    "whole_journal",
]

EARLIER = "earlier.jsonl"
_UNLIMITED = 10**9  # steps, where the time ends the training

Options = TypeVar("Options")


@dataclass(frozen=True)
class Course:
    """What is trained on what.

    Attributes:
        plan: Its part of the study's config.
        objective: Makes the network with fresh weights and its loss.
        source: Makes the training batches.
        held_out: Makes the held-out batches.
        export: Writes the trained network.
        perplexity: Internal-LM perplexities by name; None measures none.
        seed: Seed of weights, order and dropout.
    """

    plan: NetworkPlan
    objective: Callable[[], Objective]
    source: Callable[[], BatchSource]
    held_out: Callable[[], Iterable[Any]]
    export: Callable[[Any], Any]
    perplexity: Callable[[Any], dict[str, float]] | None
    seed: int


LATER = ("starts_from", "easy_first")  # fields that older studies had not


def plan_inputs(plan: NetworkPlan) -> dict[str, Any]:
    """What a network depends on, for its stage's key: of a model it starts from the content, not where it lies."""
    inputs = used_fields(plan, LATER)
    if plan.starts_from:
        inputs["starts_from"] = file_digest(_existing(plan.starts_from))
    return inputs


def _existing(file: str) -> Path:
    if not Path(file).is_file():
        raise BadInputError(
            f"starts_from names {file}, which is not there: give the model.safetensors of an earlier run"
        )
    return Path(file)


def network_config(kind: str, plan: NetworkPlan) -> Any:
    """The preset with the plan's changes laid over it, field by field."""
    return changed_config(models.preset(kind, plan.preset), plan.network)


def fresh_network(kind: str, plan: NetworkPlan, tokens: Tokens, seed: int) -> Any:
    """The planned network; the same weights for the same seed, or those of the model it starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = models.build(kind, network_config(kind, plan), tokens)
    if plan.starts_from:
        start_from(network, WarmStart(plan.starts_from, _shared(network, kind, Path(plan.starts_from))))
    return network


def keep_earlier_journal(folder: Path, kind: str, plan: NetworkPlan) -> None:
    """earlier.jsonl in the folder of a network that goes on from one of its kind: the journals of all runs before."""
    if plan.starts_from and _is_kind(Path(plan.starts_from), kind):
        rows = whole_journal(Path(plan.starts_from).parent)
        write_json_lines(folder / EARLIER, rows)


def whole_journal(folder: Path) -> list[dict[str, Any]]:
    """A run's journal after those of the runs it goes on from; steps and hours are counted on."""
    before = read_metrics(folder / EARLIER)
    step, hours = (before[-1]["step"], before[-1]["hours"]) if before else (0, 0.0)
    own = read_metrics(folder / "metrics.jsonl")
    return before + [row | {"step": step + row["step"], "hours": hours + row["hours"]} for row in own]


def _is_kind(file: Path, kind: str) -> bool:
    return bool(json.loads(read_header(file).get("ilme", "{}")).get("kind") == kind)


def _shared(network: torch.nn.Module, kind: str, file: Path) -> tuple[str, ...]:
    """What a model of an earlier run can give: all but the CTC layer, which is not stored; or its encoder alone."""
    if not _is_kind(file, kind):
        return ("encoder.*",)
    return tuple(name for name in network.state_dict() if not name.startswith("ctc."))


def options_of(kind: type[Options], values: dict[str, Any], name: str) -> Options:
    """An options dataclass from a part of the study's config; errors name the field."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    odd = sorted(set(values) - known)
    if odd:
        raise BadInputError(f"{name}.{odd[0]} is no option; there are {', '.join(sorted(known))}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def run_course(study: Study, stage: str, course: Course) -> dict[str, Any]:
    """Trains to the end and returns facts; a run that was stopped before goes on from its last checkpoint.

    Raises:
        UnfinishedError: The study's time was up first.
    """
    folder = study.folder(stage)
    loop = replace(_loop(stage, course), minutes=study.minutes_left())
    trainer = Trainer(
        folder,
        course.objective(),
        course.source(),
        course.held_out,
        loop,
        options_of(OptimiserOptions, course.plan.optimiser, "optimiser"),
        course.export,
        course.perplexity,
    )
    progress = trainer.run(resume=True)
    early = loop.patience > 0 and progress.since_best >= loop.patience
    if not trainer.finished and not early:
        raise UnfinishedError(f"{stage} stopped at step {progress.step} of {trainer.foreseen}: start again to go on")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    parameters = sum(p.numel() for p in {id(p): p for p in trainer.objective.model.parameters()}.values())
    step, loss = progress.best_step, progress.best
    if loop.choose == "last":
        step, loss = _last_held_out(folder)
    return {
        "parameters": parameters,
        "steps": progress.step,
        "best_step": step,
        "held_out_loss": round(loss, 5) if loss is not None else None,
        "hours_heard": round(progress.hours, 3),
        "training_seconds": round(progress.seconds, 1),
        "skipped_steps": progress.bad_total,
        "made_with": versions(study.device) | {"commit": commit()},
    }


def _last_held_out(folder: Path) -> tuple[int, float | None]:
    """The last step that was evaluated, and its finite held-out loss."""
    rows = [r for r in read_metrics(folder / "metrics.jsonl") if isinstance(r.get("held_out_loss"), float)]
    return (rows[-1]["step"], rows[-1]["held_out_loss"]) if rows else (0, None)


def _loop(stage: str, course: Course) -> LoopOptions:
    """The plan's loop. Its `minutes` are all the time that the network gets, over all runs of the study."""
    values = dict(course.plan.loop)
    budget = float(values.pop("minutes", 0))
    if "steps" not in values and budget <= 0:
        raise BadInputError(f"{stage}: loop needs steps, or minutes to train for")
    if "steps" in values:
        budget = 0.0
    values = {"steps": _UNLIMITED} | values | {"budget": budget}
    return replace(options_of(LoopOptions, values, "loop"), seed=course.seed, tensorboard=False)
