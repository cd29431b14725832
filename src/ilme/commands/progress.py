"""What the decoding commands show: a progress bar, the steps of a tuning."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ilme.tuning.result import TuningResult

__all__ = ["say", "steps_table", "utterance_progress"]


@contextmanager
def utterance_progress(visible: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr that counts utterances, one per decode; without a terminal, a line now and then."""
    if not visible:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
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
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: list[Any] = []
        last = [0]

        def update(done: int, total: int) -> None:
            if not tasks or done <= last[0]:
                tasks.append(bar.add_task(str(len(tasks) + 1), total=total))
            last[0] = done
            bar.update(tasks[-1], completed=done, total=total)

        yield update


def _lines(every: float = 30.0) -> Callable[[int, int], None]:
    """A plain line at most every so many seconds, and at the end of each decode."""
    began = last = time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every or done == total:
            last = now
            print(f"decoded {done}/{total} utterances, {now - began:.0f} s", file=sys.stderr, flush=True)

    return update


def say(thing: Any) -> None:
    from rich.console import Console

    Console().print(thing, highlight=False)


def steps_table(result: TuningResult) -> Any:
    """Each decode of dev, and the weights chosen."""
    from rich import box
    from rich.table import Table

    decodes = f"{result.decodes} decode{'s' if result.decodes > 1 else ''}"
    title = f"{result.method}: dev WER {result.dev.rate:.2f} after {decodes}, {result.seconds:.0f} s"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption=_caption(result))
    for name in ("decode", "λ_T", "μ", "β", "WER in the search", "WER of the lists", "new hypotheses"):
        table.add_column(name, justify="right")
    tuned = any(step.search for step in result.steps)
    if tuned:
        table.add_column("options", overflow="fold")
    for k, step in enumerate(result.steps, 1):
        w = step.weights
        cells = (f"{w.lm:.4f}", f"{w.subtracted:.4f}", f"{w.length:.4f}")
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
