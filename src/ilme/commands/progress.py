"""What the decoding commands show: a progress bar, the steps of a tuning."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ilme.runtime.console import rich_console, tell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ilme.evaluation.tuning_result import TuningResult

__all__ = ["named_progress", "say", "seconds_progress", "steps_table", "utterance_progress"]

Update = Callable[[int, int], None]  # (utterances done, of how many)


@contextmanager
def utterance_progress(visible: bool = True) -> Iterator[Update | None]:
    """A bar on stderr that counts utterances, one per decode; without a terminal, a line now and then."""
    if not visible:
        yield None
        return
    with named_progress() as begin:
        yield begin("")


@contextmanager
def named_progress() -> Iterator[Callable[[str], Update]]:
    """As `utterance_progress`, for several things that decode at the same time: each name has bars of its own."""
    if not sys.stderr.isatty():
        began = time.monotonic()
        yield lambda name: _lines(name, began)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("decode {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=rich_console(stderr=True)) as bar:
        yield lambda name: _bars(bar, name)


@contextmanager
def seconds_progress(visible: bool = True) -> Iterator[Callable[[float, float], None] | None]:
    """A bar on stderr that counts seconds of audio; nothing without a terminal, where only transcripts are wanted."""
    if not visible or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.fields[audio]}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=rich_console(stderr=True)) as bar:
        task = bar.add_task("", total=None, audio="")

        def update(done: float, total: float) -> None:
            bar.update(task, completed=done, total=total, audio=f"{done / 60:.1f} of {total / 60:.1f} min of audio")

        yield update


def _bars(bar: Progress, name: str) -> Update:
    """A bar for each decode; the first with a name needs no number."""
    tasks: list[TaskID] = []
    last = 0

    def update(done: int, total: int) -> None:
        nonlocal last
        if not tasks or done <= last:
            number = "" if name and not tasks else str(len(tasks) + 1)
            tasks.append(bar.add_task(f"{name} {number}".strip(), total=total))
        last = done
        bar.update(tasks[-1], completed=done, total=total)

    return update


def _lines(name: str, began: float, every: float = 30.0) -> Update:
    """A plain line at most every so many seconds, and at the end of each decode."""
    last = time.monotonic()
    prefix = f"{name}: " if name else ""

    def update(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every or done == total:
            last = now
            tell(f"{prefix}decoded {done}/{total} utterances, {now - began:.0f} s")

    return update


def say(thing: Any) -> None:
    """Prints a table or the like as wide as the terminal."""

    rich_console().print(thing, highlight=False)


def steps_table(result: TuningResult) -> Any:
    """Each decode of dev, and the weights chosen."""
    from rich import box
    from rich.table import Table

    decodes = f"{result.decodes} decode{'s' if result.decodes > 1 else ''}"
    title = f"{result.method}: dev WER {result.dev.rate:.2f} after {decodes}, {result.seconds:.0f} s"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption=_caption(result))
    smoothed = any(step.weights.background for step in result.steps)
    weights = ("λ_T", "μ", "β", *(("ε",) if smoothed else ()))
    for name in ("decode", *weights, "WER in the search", "WER of the lists", "new hypotheses"):
        table.add_column(name, justify="right")
    tuned = any(step.search for step in result.steps)
    if tuned:
        table.add_column("options", overflow="fold")
    for k, step in enumerate(result.steps, 1):
        w = step.weights
        cells = (f"{w.lm:.4f}", f"{w.subtracted:.4f}", f"{w.length:.4f}", *((f"{w.background:g}",) if smoothed else ()))
        errors = (f"{step.counts.rate:.2f}", f"{step.list_wer:.2f}", f"{step.added:,}")
        options = (", ".join(f"{name} {value:g}" for name, value in step.search.items()),) if tuned else ()
        chosen = (w, step.search) == (result.weights, result.search)
        table.add_row(str(k), *cells, *errors, *options, style="bold" if chosen else None)
    return table


def _caption(result: TuningResult) -> str:
    """How steady the weights are, and what another run should be given."""
    return "\n".join(filter(None, [_stability_line(result), *result.hints]))


def _stability_line(result: TuningResult) -> str:
    s = result.stability
    if s is None:
        return ""
    return (
        f"under resampling of {s.groups} speakers: λ_T {s.low.lm:.3f}–{s.high.lm:.3f}, "
        f"μ {s.low.subtracted:.3f}–{s.high.subtracted:.3f}; dev WER flatters by about {s.optimism:.2f} points"
    )
