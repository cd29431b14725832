"""The training loop, on Lightning Fabric: placement, precision and processes are Fabric's, the order of
things is here: steps (`ilme.train.updates`), and between them the journal, evaluation, perplexity and checkpoints.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ilme.errors import BadInputError, CheckpointError, IlmeError, MissingExtraError
from ilme.runtime.files import append, open_journal, remove_partials
from ilme.runtime.locks import only_run
from ilme.train.alignment import align_lstms
from ilme.train.graphs import graphs_obstacle
from ilme.train.journal import Journal, draw_curves
from ilme.train.objectives import Objective, recompute_encoder
from ilme.train.optimiser import learning_rate
from ilme.train.options import LoopOptions, OptimiserOptions
from ilme.train.snapshots import Progress, Snapshots
from ilme.train.sources import BatchSource, endless
from ilme.train.updates import StepResult, Updates

__all__ = ["Trainer", "TrainingStoppedError", "make_fabric"]

WRITTEN = ("model.safetensors", "config.json", "metrics.jsonl", "curves.png")


class TrainingStoppedError(IlmeError):
    """Training cannot go on; the message says why and what is saved."""


def make_fabric(precision: str = "auto", listens: bool = False, device: str = "") -> Any:
    """Fabric for this process: alone, or one of those that torchrun started.

    Args:
        precision: As in LoopOptions.
        listens: Whether a part of the network waits at first (`Objective.listen`), and so has no gradients to share.
        device: Where one process trains, such as cpu or cuda:1; all CUDA devices that torchrun gives if empty.
    """
    Fabric = _fabric_class()
    local, world = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.device(device).type == "cuda" if device else torch.cuda.is_available()
    index = torch.device(device).index if device else None
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=local if index is None or not cuda else [index],
        num_nodes=max(1, world // local),
        strategy="auto" if world == 1 else "ddp_find_unused_parameters_true" if listens else "ddp",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric


def _fabric_class() -> Any:
    """Fabric comes as a package of its own, or inside `lightning`."""
    for package in ("lightning_fabric", "lightning.fabric"):
        try:
            return importlib.import_module(package).Fabric
        except ImportError:
            continue
    raise MissingExtraError("lightning-fabric", "train")


class Trainer:
    """Trains one network.

    Args:
        out: Folder of the run: checkpoints/, metrics.jsonl, curves.png, and what `export` writes.
        objective: The network with its loss.
        source: Training batches of this rank.
        held_out: Makes the held-out batches of this rank anew; None: no evaluation.
        loop: How long, how often.
        optimiser: Learning rate and the like.
        export: Writes the finished model; called with the averaged weights in place, at each new best, or at each
            evaluation where `loop.choose` is `last`.
        perplexity: Internal-LM perplexities by name, measured every `loop.ilm_every` steps.
        fabric: From `make_fabric`.
        say: Called with each line of the log, in place of a progress bar; no curves are drawn then.
    """

    def __init__(
        self,
        out: Path,
        objective: Objective,
        source: BatchSource,
        held_out: Callable[[], Iterable[Any]] | None,
        loop: LoopOptions,
        optimiser: OptimiserOptions,
        export: Callable[[Any], Any],
        perplexity: Callable[[Any], dict[str, float]] | None = None,
        fabric: Any = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.out, self.source, self.held_out, self.loop, self.rates = out, source, held_out, loop, optimiser
        self.export, self.perplexity, self.say = export, perplexity, say
        self.fabric = fabric or make_fabric(loop.precision, objective.listen > 0)
        self.objective = objective
        if "encoder" in loop.recompute:
            recompute_encoder(objective.model)
        if self.fabric.device.type == "cuda":
            align_lstms(objective.model)
        self._no_graphs = graphs_obstacle(self.fabric.device.type, self.fabric.world_size)
        if loop.graphs and self._no_graphs is None:
            objective.record()
        self.updates = Updates(objective, loop, optimiser, self.fabric)
        self.snapshots = Snapshots(out, loop.keep)
        self.progress = Progress(seed=loop.seed)
        self._stop_asked = False
        self._export_failure: CheckpointError | None = None

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self, resume: bool = False) -> Progress:
        """Trains until the last step or the budget's end, an early stop, the time limit or SIGTERM; then exports.

        SIGTERM is passed on when all is saved, so that the process ends as one that was asked to.
        """
        with only_run(self.out) if self.fabric.is_global_zero else nullcontext():
            return self._run(resume)

    def _run(self, resume: bool) -> Progress:
        self._begin(resume)
        main = threading.current_thread() is threading.main_thread()  # no other may handle signals
        previous = signal.signal(signal.SIGTERM, self._on_sigterm) if main else None
        title = f"train {self.objective.model.kind}"
        journal = Journal(
            self.out,
            self.progress.step,
            self.foreseen,
            self.fabric.is_global_zero,
            self.loop.tensorboard,
            title,
            self.say,
        )
        try:
            with journal:
                if self.loop.graphs and self._no_graphs is not None:
                    journal.say(f"loop.graphs has no effect: {self._no_graphs}")
                self._train(journal)
        finally:
            if main:
                signal.signal(signal.SIGTERM, previous)
        if self.fabric.is_global_zero and self.say is None:
            draw_curves(journal.path, self.out / "curves.png")
        if self._stop_asked:
            signal.raise_signal(signal.SIGTERM)
        return self.progress

    @property
    def finished(self) -> bool:
        """Whether all steps are made, or the budget is spent."""
        budget = 60 * self.loop.budget
        return self.progress.step >= self.loop.steps or (budget > 0 and self.progress.seconds >= budget)

    @property
    def foreseen(self) -> int:
        """Steps of the whole run; with a budget as many as fit into it at the pace so far."""
        step, seconds, budget = self.progress.step, self.progress.seconds, 60 * self.loop.budget
        if not budget or not seconds:
            return self.loop.steps
        return max(step, min(self.loop.steps, round(step * budget / seconds)))

    def _begin(self, resume: bool) -> None:
        if self.fabric.is_global_zero:
            remove_partials(*(self.out / name for name in WRITTEN))
            self.snapshots.tidy()
        newest = self.snapshots.newest()
        if newest is not None and not resume:
            raise BadInputError(
                f"{self.out} holds a run ({newest.name}): add --resume to go on, or give another folder"
            )
        if newest is not None:
            self._restore(newest)

    def _train(self, journal: Journal) -> None:
        progress, loop = self.progress, self.loop
        batches = endless(self.source)
        started, shown_at, shown_hours = time.monotonic(), time.monotonic(), progress.hours
        before, first = progress.seconds, progress.step
        while not self.finished:
            progress.step += 1
            done = self._step(batches)
            progress.seconds = self._agreed(before + time.monotonic() - started)
            progress.hours += done.hours
            if done.finite:
                progress.bad_in_a_row = 0
                progress.window = (progress.window[0] + done.loss, progress.window[1] + 1)
            else:
                self._note_bad(done, journal)
            step = progress.step
            if step % loop.log_every == 0 or self.finished:
                now = time.monotonic()
                speed = (progress.hours - shown_hours) / max(1e-9, now - shown_at)
                pace = (now - started) / max(1, step - first)
                mean = progress.window[0] / progress.window[1] if progress.window[1] else math.nan
                journal.show(step, self.foreseen, mean, speed, pace * (self.foreseen - step))
                values = {"loss": mean, "rate": self._rate(step), "gradient": done.gradient,
                          "epoch": self.source.state_dict().get("epoch", 0),
                          "seconds": round(progress.seconds, 3), "hours_per_second": speed,
                          **done.beside}  # fmt: skip
                journal.write(step, progress.hours, {k: v for k, v in values.items() if math.isfinite(v)})
                progress.window, shown_at, shown_hours = (0.0, 0), now, progress.hours
            if self._after_step(journal, started):
                return

    def _after_step(self, journal: Journal, started: float) -> bool:
        """Evaluation, perplexity, checkpoints; whether training is over."""
        progress, loop = self.progress, self.loop
        step, last = progress.step, self.finished
        reason = self._reason_to_stop(time.monotonic() - started)
        measure = self.perplexity
        if loop.ilm_every and measure is not None and (step % loop.ilm_every == 0 or last):
            found = self.updates.with_average(lambda: measure(self.objective.model))
            journal.write(step, progress.hours, found)
        due = step % loop.evaluate_every == 0 or last
        early = self._evaluate(journal) if due else False
        stop = reason is not None or early
        if step % loop.save_every == 0 or last or stop:
            self._save(journal, must=last or stop)
        if reason == "time is up" and not due:
            self._evaluate(journal)  # after the checkpoint, which is then that of a run without the time limit
        if (last or stop) and progress.best is None:
            if progress.since_best:
                journal.say(f"no held-out loss was finite: the model is that of step {step}, and nothing measured it")
            self._export(journal)
        if (last or stop) and self._export_failure is not None:
            raise self._export_failure
        if early:
            lacked = "finite" if progress.best is None else f"better than that of step {progress.best_step}"
            journal.say(f"stopped early at step {step}: no held-out loss was {lacked}")
        elif reason is not None and not last:
            journal.say(f"{reason}: saved at step {step}; add --resume to go on")
        return stop

    def _reason_to_stop(self, elapsed: float) -> str | None:
        """Why any of the processes wants to stop; all of them must, at the same step."""
        over_time = self.loop.minutes > 0 and elapsed > 60 * self.loop.minutes
        votes = torch.tensor([float(self._stop_asked), float(over_time)], device=self.fabric.device)
        if self.fabric.world_size > 1:
            votes = self.fabric.all_reduce(votes, reduce_op="sum")
        elif not (self._stop_asked or over_time):
            return None
        asked, over = votes.tolist()
        return "asked to stop" if asked else "time is up" if over else None

    def _agreed(self, seconds: float) -> float:
        """The first process's clock where the learning rate, which all must share, depends on it."""
        shared = self.loop.budget > 0 and self.fabric.world_size > 1
        return float(self.fabric.broadcast(seconds)) if shared else seconds

    # -- one step -----------------------------------------------------------------------------------------------

    def _rate(self, step: int) -> float:
        return learning_rate(step, self.foreseen, self.rates, again=self.objective.listen)

    def _step(self, batches: Iterator[Any]) -> StepResult:
        step = self.progress.step
        return self.updates.step(step, batches, self._rate(step))

    def _note_bad(self, done: StepResult, journal: Journal) -> None:
        """Writes out the batch of a step that was skipped; after too many in a row, stops."""
        progress = self.progress
        progress.bad_in_a_row += 1
        progress.bad_total += 1
        row = {"step": progress.step, "loss": str(done.loss), "gradient": str(done.gradient), "ids": done.ids}
        if done.ids:
            with open_journal(self.out / "skipped.jsonl") as file:
                append(file, f"{json.dumps(row)}\n".encode())
        journal.say(f"step {progress.step} skipped: loss {done.loss}, gradient norm {done.gradient}; see skipped.jsonl")
        if progress.bad_in_a_row >= self.loop.bad_steps:
            last = self.snapshots.newest()
            raise TrainingStoppedError(
                f"{progress.bad_in_a_row} steps in a row had a loss or gradient that is not finite (the last at step "
                f"{progress.step}, loss {done.loss}, gradient norm {done.gradient}); their batches are listed in "
                f"{self.out / 'skipped.jsonl'}. Lower optimiser.rate or look at that data; the last checkpoint is "
                f"{last or 'none'}"
            )

    # -- evaluation, checkpoints --------------------------------------------------------------------------------

    def _evaluate(self, journal: Journal) -> bool:
        """Held-out loss per unit; exports a new best, or the last, which are always finite; whether to stop early."""
        if self.held_out is None:
            return False
        progress = self.progress
        loss = self.updates.with_average(self._held_out_loss)
        finite = math.isfinite(loss)
        better = finite and (progress.best is None or loss < progress.best)
        if better:
            progress.best, progress.best_step, progress.since_best = loss, progress.step, 0
        else:
            progress.since_best += 1
        if better or (finite and self.loop.choose == "last"):
            self._export(journal)
        best = {} if progress.best is None else {"best": progress.best}
        journal.write(progress.step, progress.hours, {"held_out_loss": loss if finite else str(loss), **best})
        note = ", the best so far" if better else "" if finite else ", which is not finite: it counts as no improvement"
        journal.say(f"step {progress.step}: held-out loss {loss:.4f}{note}")
        return self.loop.patience > 0 and progress.since_best >= self.loop.patience

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self.updates.wrapped.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        for batch in self.held_out() if self.held_out else ():
            batch = batch.to(self.fabric.device)
            # Not through the wrapper: ranks may hold different numbers of batches.
            with self.fabric.autocast():
                sums[0] += self.objective(*self.objective.inputs(batch)).double()
            sums[1] += self.objective.units(batch)
        if self.fabric.world_size > 1:
            sums = self.fabric.all_reduce(sums, reduce_op="sum")
        self.updates.wrapped.train()
        total, units = sums.tolist()
        if not units:
            raise BadInputError("the held-out data is empty")
        return float(total / units)

    def _export(self, journal: Journal) -> None:
        """Writes the model; a failure is told at once and, if no later attempt succeeds, raised at the end."""
        if self.fabric.is_global_zero:
            self._export_failure = None
            try:
                self.updates.with_average(lambda: self.export(self.objective.model))
            except CheckpointError as error:
                self._export_failure = error
                journal.say(f"{error} Training goes on.")
        self.fabric.barrier()

    def _check_weights(self) -> None:
        """Stops a run whose weights are not finite, before it saves or exports them."""
        progress = self.progress
        found = self.updates.not_finite()
        if found is None:
            return
        model = "no model was written" if progress.best is None else f"the model is that of step {progress.best_step}"
        raise TrainingStoppedError(
            f"after step {progress.step} the weights are not finite ({found}), so they are not saved; {model}, and the "
            f"last checkpoint is {self.snapshots.newest() or 'none'}. Lower optimiser.rate and add --resume to go on"
        )

    def _save(self, journal: Journal, must: bool) -> None:
        self._check_weights()
        self.progress.sources = self._gather(self.source.state_dict())
        if self.fabric.is_global_zero:
            journal.sync()
            try:
                self.snapshots.save(self.progress, *self.updates.state())
            except CheckpointError as error:
                if must:
                    raise
                journal.say(f"{error}; training goes on and tries again in {self.loop.save_every} steps")
        self.fabric.barrier()

    def _gather(self, state: dict[str, int]) -> list[dict[str, int]]:
        """The state of every rank's source."""
        if self.fabric.world_size == 1:
            return [state]
        everyone: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(everyone, state)
        return everyone

    def _restore(self, path: Path) -> None:
        progress, files, about = self.snapshots.load(path)
        if len(progress.sources) != self.fabric.world_size:
            raise BadInputError(
                f"{path} was written by {len(progress.sources)} processes, this run has {self.fabric.world_size}: "
                "the batches would differ. Resume with as many"
            )
        if progress.seed != self.loop.seed:
            raise BadInputError(f"{path} has seed {progress.seed}, this run {self.loop.seed}: resume with the same")
        self.updates.restore(path, files, about)
        self.source.load_state_dict(progress.sources[self.fabric.global_rank])
        self.progress = progress
        if self.fabric.is_global_zero:
            self.snapshots.prune(progress)  # a kill may have come between a checkpoint and this

    def _on_sigterm(self, *_: Any) -> None:
        self._stop_asked = True
