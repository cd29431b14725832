"""What a run writes down: metrics.jsonl, TensorBoard events, a progress bar, and a picture of the curves at the end.

Each line of metrics.jsonl is one JSON object with "step" and "hours" (hours of audio seen) and one of
    {"loss", "rate", "gradient", "epoch", "seconds", "hours_per_second"}   training, per unit (label or end); with
                                                                           internal-LM training also "ilm_loss"
    {"held_out_loss", "best"}                                              an evaluation; a loss that is not finite
                                                                           is the text "nan" or "inf", never the best
    {"ilm_ppl", "source_lm_ppl"}                                           internal-LM perplexity, per token
    {"skipped"}                                                            ids of a batch that gave no finite
    step
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ilme.runtime.console import rich_console, tell
from ilme.runtime.files import append, atomic_path, open_journal, write_json_lines

__all__ = ["Journal", "draw_curves", "read_metrics"]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; one that a killed process left half-written is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class Journal:
    """Open while a run trains. On other ranks than 0 it writes nothing.

    Args:
        out: The run's folder.
        first_step: Steps already done; later lines of an interrupted run are dropped, they are made again.
        steps: Steps of the whole run, as far as they are known at its start.
        active: Whether this process writes.
        tensorboard: Also write event files, if the package is there.
        title: Shown beside the progress bar.
        listener: Called with each line, in place of the bar and of standard error.
    """

    def __init__(
        self,
        out: Path,
        first_step: int,
        steps: int,
        active: bool,
        tensorboard: bool = True,
        title: str = "",
        listener: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.active, self.steps, self.title = out / "metrics.jsonl", active, steps, title
        self._listener = listener
        self._bar: Any = None
        self._events: Any = None
        if not active:
            return
        rows = [row for row in read_metrics(self.path) if row["step"] <= first_step]
        write_json_lines(self.path, rows)
        self._file = open_journal(self.path)
        self._first = first_step
        if tensorboard:
            self._events = _event_writer(out / "tensorboard", first_step)

    def __enter__(self) -> Journal:
        if self.active and self._listener is None and sys.stderr.isatty():
            self._bar = _progress_bar()
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.steps, completed=self._first, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self.active:
            self._file.close()
            if self._events is not None:
                self._events.close()

    def write(self, step: int, hours: float, values: dict[str, Any]) -> None:
        """One line, on the disk at once, and its numbers as events."""
        if not self.active:
            return
        row = {"step": step, "hours": round(hours, 6), **values}
        append(self._file, f"{json.dumps(row)}\n".encode())
        if self._events is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._events.add_scalar(name, value, step)

    def sync(self) -> None:
        """Waits until all lines are on the disk: those before a checkpoint must outlive a power cut, as it does."""
        if self.active:
            with suppress(OSError):  # the checkpoint that comes next says so, better
                os.fsync(self._file.fileno())

    def show(self, step: int, steps: int, loss: float, hours_per_second: float, remaining: float) -> None:
        """The state of the run for a reader; without a terminal, one plain line."""
        if not self.active:
            return
        speed = f"{hours_per_second:.3g} h audio/s" if hours_per_second else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, total=steps, note=f"loss {loss:.4f}  {speed}")
        else:
            left = f"{int(remaining // 60)}:{int(remaining % 60):02d} left"
            self.say(f"step {step}/{steps}  loss {loss:.4f}  {speed}  {left}")

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        elif self.active and self._listener is not None:
            self._listener(text)
        elif self.active:
            tell(f"{self.title}: {text}")


def _progress_bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=rich_console(stderr=True),
    )


def _event_writer(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("TensorBoard is not installed: metrics.jsonl only (pip install 'ilme[train]')", file=sys.stderr)
        return None
    return SummaryWriter(str(folder), purge_step=first_step + 1)


def draw_curves(metrics: Path, picture: Path) -> Path | None:
    """Loss, learning rate and internal-LM perplexity over the steps; None if there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = read_metrics(metrics)
    panels = [
        ("loss per unit", [("loss", "training"), ("held_out_loss", "held out")], True),
        ("internal-LM perplexity", [("ilm_ppl", "internal LM"), ("source_lm_ppl", "source LM")], True),
        ("learning rate", [("rate", "")], False),
    ]
    panels = [p for p in panels if any(key in row for row in rows for key, _ in p[1])]
    if not panels:
        return None
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False)
    for axis, (title, curves, logarithmic) in zip(axes[0], panels, strict=True):
        for key, label in curves:
            points = [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
            if points:
                axis.plot(*zip(*points, strict=True), label=label or None, marker="." if len(points) < 40 else "")
        axis.set(title=title, xlabel="step", yscale="log" if logarithmic else "linear")
        if any(label for _, label in curves):
            axis.legend()
        axis.grid(alpha=0.3)
    figure.tight_layout()
    with atomic_path(picture) as partial:
        figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)
    return picture
