"""Updates of a network's weights: what one step does, and the state that a checkpoint keeps of it.

A step: draw `accumulate` batches; loss / units, where units are counted over all batches and processes; clip; update;
average. All random numbers of step n on rank r come from (seed, n, r), so a run that is killed and resumed makes the
same ones as a run that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError
from ilme.train.objectives import Objective
from ilme.train.optimiser import MovingAverage, freeze, make_optimiser, set_rate
from ilme.train.options import LoopOptions, OptimiserOptions
from ilme.train.snapshots import not_finite, optimiser_tensors, restore_optimiser

__all__ = ["StepResult", "Updates"]

# cuDNN's LSTM computes in float16 under mixed precision, whose smallest number is 6e-8; the gradient that a frame gets
# from a loss per unit is smaller than that. So the loss is enlarged for the backward pass, and the gradients shrunk.
ENLARGED = 1024.0

Found = TypeVar("Found")


@dataclass
class StepResult:
    """What one step gave: summed loss per unit and gradient norm, both finite if the weights were updated.

    `beside` are terms of the loss, per unit too, that the journal shows apart.
    """

    loss: float
    gradient: float
    hours: float
    ids: list[str]
    beside: dict[str, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient)


class Updates:
    """A network with its optimiser and the moving average of its weights.

    Args:
        objective: The network with its loss.
        loop: Batches of a step, seed, averaging, precision.
        rates: Learning rate and the like.
        fabric: From `make_fabric`.
    """

    def __init__(self, objective: Objective, loop: LoopOptions, rates: OptimiserOptions, fabric: Any) -> None:
        self.objective, self.loop, self.rates, self.fabric = objective, loop, rates, fabric
        freeze(objective.model, rates.frozen)
        self.wrapped, self.optimiser = fabric.setup(objective, make_optimiser(objective.model, rates))
        self._inner = getattr(self.optimiser, "optimizer", self.optimiser)
        self._names = {id(p): name for name, p in objective.model.named_parameters()}
        self._trained = [p for p in objective.model.parameters() if p.requires_grad]
        self.average = MovingAverage(objective.model, loop.average) if loop.average else None
        mixed = fabric.device.type == "cuda" and loop.precision != "fp32"
        self.enlarged = ENLARGED if mixed else 1.0

    def step(self, number: int, batches: Iterator[Any], rate: float) -> StepResult:
        """Step `number` with that learning rate; where loss or gradient is not finite, the weights stay."""
        loop = self.loop
        torch.manual_seed((loop.seed * 1_000_003 + number) * 4099 + self.fabric.global_rank)
        self.objective.at_step(number)
        self.wrapped.train()
        drawn = [next(batches).to(self.fabric.device) for _ in range(loop.accumulate)]
        units = torch.stack([self.objective.units(b) for b in drawn]).sum().double()
        if self.fabric.world_size > 1:
            units = self.fabric.all_reduce(units, reduce_op="sum")
        scale = (self.fabric.world_size / units).float()
        total = torch.zeros((), device=self.fabric.device)
        beside: dict[str, Tensor] = {}
        for i, batch in enumerate(drawn):
            last = i + 1 == len(drawn)
            with self.fabric.no_backward_sync(self.wrapped, enabled=not last):
                loss: Tensor = self.wrapped(*self.objective.inputs(batch)) * scale
                self.fabric.backward(loss * self.enlarged)
            total += loss.detach()
            for name, value in self.objective.beside.items():
                beside[name] = beside.get(name, 0.0) + value.float() * scale
            del loss  # nothing of this pass may be alive when the next one is recorded as a graph
        if self.enlarged != 1:
            torch._foreach_div_([p.grad for p in self._trained if p.grad is not None], self.enlarged)
        norm = torch.nn.utils.clip_grad_norm_(self._trained, self.rates.clip or math.inf)
        seen = torch.tensor(sum(b.seconds for b in drawn) / 3600, device=self.fabric.device, dtype=torch.float64)
        bad_here = not math.isfinite(float(total)) if self.fabric.world_size > 1 else False
        if self.fabric.world_size > 1:
            total = self.fabric.all_reduce(total, reduce_op="mean")
            seen = self.fabric.all_reduce(seen, reduce_op="sum")
            beside = {name: self.fabric.all_reduce(value, reduce_op="mean") for name, value in beside.items()}
        loss_value, norm_value, *values = torch.stack([total.float(), norm.float(), *beside.values()]).tolist()
        ids = [i for b in drawn for i in b.ids] if bad_here or self.fabric.world_size == 1 else []
        done = StepResult(loss_value, norm_value, float(seen), ids, dict(zip(beside, values, strict=True)))
        if done.finite:
            set_rate(self._inner, rate, number <= self.rates.thaw)
            self.optimiser.step()
            if self.average is not None:
                self.average.update()
        self.optimiser.zero_grad()
        return done

    def with_average(self, action: Callable[[], Found]) -> Found:
        """Does something while the averaged weights are in place."""
        if self.average is None:
            return action()
        self.average.swap()
        try:
            return action()
        finally:
            self.average.swap()

    def not_finite(self) -> str | None:
        """The name of a weight, or of its average, that is not finite; None: all are."""
        return not_finite(self.objective.model.state_dict()) or not_finite(self.average.values if self.average else {})

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """The tensors that a checkpoint keeps, by file, and what it notes beside them."""
        files = {
            "weights": _without_copies(self.objective.model.state_dict()),
            "optimiser": optimiser_tensors(self._inner, self._names),
        }
        if self.average is not None:
            files["average"] = self.average.values
        return files, {"average_updates": self.average.updates if self.average else 0}

    def restore(self, path: Path, files: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
        """Takes over what `state` gave; `path` is the checkpoint's, for errors."""
        if (self.average is not None) != ("average" in files):
            raise BadInputError(f"{path} and this run differ in loop.average: resume with the same")
        model = self.objective.model
        try:
            missing, unexpected = model.load_state_dict(files["weights"], strict=False)
        except RuntimeError as error:
            raise CheckpointError(f"{path} is of another network: {error}") from error
        tied = set(model.state_dict()) - set(_without_copies(model.state_dict()))
        if set(missing) - tied or unexpected:
            odd = sorted(set(missing) - tied or unexpected)[0]
            raise CheckpointError(f"{path} is of another network: {odd!r} is not in both")
        restore_optimiser(self._inner, self._names, files["optimiser"])
        if self.average is not None:
            self.average.load(files["average"], int(about["average_updates"]))


def _without_copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """One name for each storage: tied weights are written once."""
    seen: set[int] = set()
    out = {}
    for name, value in state.items():
        if value.data_ptr() not in seen or not value.numel():
            seen.add(value.data_ptr())
            out[name] = value
    return out
