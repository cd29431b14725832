"""Checkpoints of a running training: everything that decides what the next step does.

    OUT/checkpoints/step-00001000/   weights, optimiser, average (safetensors) and state.json, written last

A checkpoint is written in a folder with another name and moved to its place when it is complete and on the
disk, so a reader finds whole ones only, whenever the writer was killed. Random numbers need no file: those
of a step are drawn from (seed, step, rank), which state.json holds.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.runtime.files import replace_folder, write_json
from ilme.runtime.tensors import read_tensors, write_tensors

__all__ = ["Progress", "Snapshots", "not_finite", "optimiser_tensors", "restore_optimiser"]

VERSION = 1


@dataclass
class Progress:
    """What a run has done so far.

    Attributes:
        step: Updates made, skipped ones included.
        hours: Hours of audio seen.
        seconds: Time spent in training, over all resumptions.
        best: Lowest held-out loss so far; None before the first evaluation that gave a finite one.
        best_step: The step it was reached at.
        since_best: Evaluations since then, or since the start.
        bad_in_a_row: Steps skipped in a row.
        bad_total: Steps skipped in all.
        window: Sum of the losses since the last line of the log, and their number.
        sources: State of each rank's batches.
        seed: The run's seed; with step and rank it makes all random numbers.
    """

    step: int = 0
    hours: float = 0.0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    since_best: int = 0
    bad_in_a_row: int = 0
    bad_total: int = 0
    window: tuple[float, int] = (0.0, 0)
    sources: list[dict[str, Any]] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.best is not None and not math.isfinite(self.best):
            self.best, self.best_step = None, 0


class Snapshots:
    """The checkpoints of one run: the last `keep` and the best."""

    def __init__(self, out: Path, keep: int) -> None:
        self.folder = out / "checkpoints"
        self.keep = keep

    def all(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.glob("step-*") if (path / "state.json").is_file())

    def newest(self) -> Path | None:
        found = self.all()
        return found[-1] if found else None

    def save(self, progress: Progress, files: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> Path:
        """Writes a checkpoint, then removes those that are no longer kept.

        Raises CheckpointError if it cannot be written; the ones that are there stay as they are.
        """
        final = self.folder / f"step-{progress.step:08d}"
        try:
            self.tidy()
            with replace_folder(final) as folder:
                for name, tensors in files.items():
                    write_tensors(folder / f"{name}.safetensors", tensors, {})
                sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
                state = {"version": VERSION, "progress": asdict(progress), "files": sizes, **about}
                write_json(folder / "state.json", state)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(self._failure(progress.step, error)) from error
        self.prune(progress)
        return final

    def prune(self, progress: Progress) -> None:
        """Removes those that are no longer kept."""
        for path in self.all()[: -self.keep]:
            if path.name != f"step-{progress.best_step:08d}":
                (path / "state.json").unlink()  # from here on it is none
                shutil.rmtree(path)

    def _failure(self, step: int, error: Exception) -> str:
        cause = error.__cause__ if isinstance(error, CheckpointError) else error
        full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else str(error)
        last = self.newest()
        kept = f"the last good one, {last}, is untouched" if last else "there is no earlier one"
        return f"the checkpoint of step {step} could not be written to {self.folder} ({why}); {kept}"

    def tidy(self) -> None:
        """Removes what a kill in the middle of a write, or of a removal, left."""
        broken = (path for path in self.folder.glob("step-*") if not (path / "state.json").is_file())
        for path in [*self.folder.glob(".*.partial"), *broken]:
            shutil.rmtree(path)

    def load(self, path: Path) -> tuple[Progress, dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Progress, tensors by file, and the rest of the description."""
        try:
            state = json.loads((path / "state.json").read_text())
            progress = Progress(**state.pop("progress"))
            sizes = state.pop("files")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is not a whole checkpoint: {error!r}; remove it to use the one before"
            ) from error
        if state.pop("version", None) != VERSION:
            raise CheckpointError(
                f"{path} has another format version than {VERSION}; resume it with the ilme that wrote it"
            )
        for name, size in sizes.items():
            found = (path / name).stat().st_size if (path / name).is_file() else 0
            if found != size:
                raise CheckpointError(
                    f"{path / name} has {found:,} bytes, not {size:,}: remove {path} to resume from the one before"
                )
        files = {Path(name).stem: read_tensors(path / name)[0] for name in sizes}
        self._check_finite(path, files)
        return progress, files, state

    def _check_finite(self, path: Path, files: dict[str, dict[str, Tensor]]) -> None:
        for name in ("weights", "average"):
            if (found := not_finite(files.get(name, {}))) is not None:
                before = [p.name for p in self.all() if p < path]
                way_out = f"remove it to resume from {before[-1]}" if before else "start again in another folder"
                raise CheckpointError(
                    f"{path} cannot be resumed: in its {name} {found} are not finite, so every step would be skipped; "
                    f"{way_out}, with a lower optimiser.rate if training diverged"
                )


def not_finite(tensors: dict[str, Tensor]) -> str | None:
    """Which of the tensors holds NaN or infinity, in words; None: none does."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            bad = int((~value.isfinite()).sum())
            return f"{bad:,} of the {value.numel():,} numbers of {name}"
    return None


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Tensor]:
    """The optimiser's state by parameter name; `names` maps the id of a parameter to its name."""
    return {
        f"{names[id(parameter)]}|{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimiser.state.items()
        for key, value in state.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: dict[int, str], tensors: dict[str, Tensor]) -> None:
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.partition("|")
        by_name.setdefault(name, {})[entry] = value
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            state = by_name.get(names[id(parameter)])
            if state is None:
                continue
            on_device = {k: v if k == "step" else v.to(parameter.device) for k, v in state.items()}
            fused = group.get("fused") or group.get("capturable")
            if fused and "step" in on_device:
                on_device["step"] = on_device["step"].to(parameter.device)
            optimiser.state[parameter] = on_device
