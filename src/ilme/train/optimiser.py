"""Parameter groups, the learning-rate schedule, weights to start from, and their moving average."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokens, check_same_vocabulary
from ilme.train.options import OptimiserOptions, WarmStart

__all__ = ["MovingAverage", "freeze", "learning_rate", "make_optimiser", "set_rate", "start_from"]


def learning_rate(step: int, steps: int, options: OptimiserOptions, again: int = 0) -> float:
    """The rate of update `step` (the first is 1) of `steps`.

    rise:         peak · step / warmup
    once more:    · (step − again) / warmup, for as many steps after step `again`: AdamW takes full steps at once with
                  parameters of which it knows no gradient yet
    linear:       peak · (1 − (1 − final) x),            x = (step − warmup) / (steps − warmup)
    cosine:       peak · (final + (1 − final) (1 + cos πx) / 2)
    inverse_sqrt: peak · √(warmup / step)
    """
    if 0 < again < step < again + options.warmup:
        return learning_rate(step, steps, options) * (step - again) / options.warmup
    if step <= options.warmup:
        return options.rate * step / options.warmup
    if options.decay == "constant":
        return options.rate
    if options.decay == "inverse_sqrt":
        return options.rate * math.sqrt(max(1, options.warmup) / step)
    x = min(1.0, (step - options.warmup) / max(1, steps - options.warmup))
    shape = 1 - x if options.decay == "linear" else (1 + math.cos(math.pi * x)) / 2
    return options.rate * (options.final + (1 - options.final) * shape)


def freeze(model: nn.Module, patterns: Iterable[str]) -> int:
    """Stops the training of parameters whose names match; how many numbers that are."""
    frozen = 0
    for pattern in patterns:
        matches = [p for name, p in model.named_parameters() if fnmatchcase(name, pattern)]
        if not matches:
            raise BadInputError(f"optimiser.frozen: {pattern!r} matches no parameter; {_names(model)}")
        for parameter in matches:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen


def make_optimiser(model: nn.Module, options: OptimiserOptions) -> torch.optim.AdamW:
    """AdamW with one group for each pair of learning-rate factor and weight decay."""
    for pattern in options.layer_rates:
        if not any(fnmatchcase(name, pattern) for name, _ in model.named_parameters()):
            raise BadInputError(f"optimiser.layer_rates: {pattern!r} matches no parameter; {_names(model)}")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        factor = next((f for p, f in options.layer_rates.items() if fnmatchcase(name, p)), 1.0)
        decay = options.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((factor, decay), []).append(parameter)
    if not groups:
        raise BadInputError("optimiser.frozen leaves nothing to train")
    settings: list[dict[str, Any]] = [
        {"params": parameters, "factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]
    fused = torch.cuda.is_available()  # one kernel for all parameters
    return torch.optim.AdamW(settings, lr=options.rate, betas=(options.beta1, options.beta2), fused=fused)


def set_rate(optimiser: torch.optim.Optimizer, rate: float, still: bool = False) -> None:
    """The rate of each group of parameters; `still`: 0 where the group has a factor of its own."""
    for group in optimiser.param_groups:
        group["lr"] = 0.0 if still and group["factor"] != 1 else rate * group["factor"]


def start_from(model: nn.Module, warm: WarmStart) -> int:
    """Copies the named weights of a trained model into this one; how many numbers that are.

    Weights that belong to labels (embeddings, output layers) are copied only between models over the same tokens.
    """
    if warm.model is None:
        return 0
    from ilme.models.checkpoint import load_checkpoint

    other: Any = load_checkpoint(warm.model).model
    theirs = other.state_dict()
    labels: Tokens | None = getattr(model, "tokens", None)
    copied = 0
    for name, value in model.state_dict().items():
        if not any(fnmatchcase(name, pattern) for pattern in warm.parts):
            continue
        if name not in theirs:
            raise CheckpointError(f"{warm.model} has no weights {name!r}; name the parts it has: {_names(model)}")
        if theirs[name].shape != value.shape:
            raise CheckpointError(
                f"{warm.model}: {name} has shape {tuple(theirs[name].shape)}, this network needs {tuple(value.shape)}"
            )
        if labels is not None and len(labels) in value.shape:
            advice = (
                f"{name} belongs to its tokens: take other parts of it, such as encoder.*, or train over its tokenizer."
            )
            check_same_vocabulary(labels, other.tokens, "network", f"model {warm.model}", advice)
        value.copy_(theirs[name])
        copied += value.numel()
    if not copied:
        raise BadInputError(f"warm_start.parts {list(warm.parts)} match no weights; {_names(model)}")
    return copied


def _names(model: nn.Module) -> str:
    tops = sorted({name.split(".")[0] for name, _ in model.named_parameters()})
    return "names start with " + ", ".join(tops)


class MovingAverage:
    """Exponential moving average of the trained weights: m ← m + (1 − d_n) (w − m),  d_n = min(d, (1 + n) /
    (10 + n)).

    The ramp of d_n keeps the first, random weights out of the average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._live = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = [p.detach() for p in self._live.values()]
        torch._foreach_lerp_(list(self.values.values()), live, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the average and the live weights; a second call puts them back."""
        for name, parameter in self._live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.values[name])
            self.values[name].copy_(kept)

    @torch.no_grad()
    def load(self, values: dict[str, Tensor], updates: int) -> None:
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates = updates
