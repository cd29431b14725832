"""The paper's tables, from one result object to terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ilme.errors import BadInputError
from ilme.evaluation.analysis import by_frequency, domain_words, word_recall
from ilme.evaluation.metrics import normaliser
from ilme.evaluation.results import Results, System

__all__ = ["Style", "Table", "comparison_table", "main_table", "recall_table", "render", "render_all"]

Style = Literal["terminal", "markdown", "latex", "csv", "json"]


@dataclass(frozen=True)
class Table:
    """Cells as text, and which rows begin a new group (a model).

    Attributes:
        title: What it shows.
        columns: Headings.
        rows: Cells.
        groups: Indices of the rows before which a line is drawn.
        best: Indices of the rows to set in bold.
        note: How to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[int, ...] = ()
    best: tuple[int, ...] = ()
    note: str = ""


def main_table(results: Results) -> Table:
    """Method, run-time parameters, λ_T, μ, dev and test WER with interval, errors by kind, change against BS."""
    columns = (
        "Model", "Method", "Params (M)", "λ_T", "μ", "Dev WER", "Test WER", "95 % interval",
        "S", "D", "I", "vs BS (%)", "p",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    groups: list[int] = []
    best: list[int] = []
    for model in dict.fromkeys(s.model for s in results.systems):
        of_model = [s for s in results.systems if s.model == model]
        groups.append(len(rows))
        lowest = min(results.measurements[s.name].rate for s in of_model)
        for system in of_model:
            if results.measurements[system.name].rate == lowest:
                best.append(len(rows))
            rows.append(_row(results, system))
    utterances, words = len(results.references), next(iter(results.measurements.values())).total.words
    note = (
        f"{results.name}: {utterances:,} utterances, {words:,} words, normaliser {results.normaliser}. "
        "Intervals: bootstrap over speakers. p: paired bootstrap against BS, two-sided."
    )
    return Table("Word error rate (%)", columns, tuple(rows), tuple(groups), tuple(best), note)


def _row(results: Results, system: System) -> tuple[str, ...]:
    total, interval = results.measurements[system.name].total, results.intervals[system.name]
    baseline = results.baseline(system.model)
    against = results.comparison(system.name, baseline.name) if baseline else None
    return (
        system.model,
        system.method,
        f"{system.parameters / 1e6:.1f}" if system.parameters else "–",
        f"{system.weights.lm:.3f}" if system.weights.lm else "–",
        f"{system.weights.subtracted:.3f}" if system.weights.subtracted else "–",
        "–" if system.dev_wer is None else f"{system.dev_wer:.2f}",
        f"{total.rate:.2f}",
        f"{interval.low:.2f}–{interval.high:.2f}",
        str(total.substitutions),
        str(total.deletions),
        str(total.insertions),
        "–" if against is None else f"{-against.relative:+.1f}".replace("-", "−"),
        "–" if against is None else p_value(against.p_bootstrap),
    )


def comparison_table(results: Results) -> Table:
    """Every pair of methods of one model, with both tests."""
    columns = ("System", "Against", "Δ WER", "95 % interval", "Relative (%)", "p bootstrap", "p MAPSSWE")
    rows = tuple(
        (
            c.a,
            c.b,
            f"{-c.difference:+.2f}".replace("-", "−"),
            f"{-c.interval[1]:+.2f} … {-c.interval[0]:+.2f}".replace("-", "−"),
            f"{-c.relative:+.1f}".replace("-", "−"),
            p_value(c.p_bootstrap),
            "–" if c.p_mapsswe is None else p_value(c.p_mapsswe),
        )
        for c in results.comparisons
    )
    note = "Negative: the system makes fewer errors than the one it is set against."
    return Table("Paired comparisons", columns, rows, note=note)


def recall_table(results: Results, source: Path, target: Path | None = None) -> Table:
    """Words right, in per cent, by how often the source text has them; and the words that mark the target text."""
    normalise = normaliser(results.normaliser)
    with source.open(encoding="utf-8-sig", errors="replace") as lines:
        source_lines = [normalise(line) for line in lines]
    counts = Counter(word for line in source_lines for word in line.split())
    measured = [results.measurements[s.name] for s in results.systems]
    groups = [by_frequency(m, counts) for m in measured]
    rows = [
        (
            f"{per_system[0].name} times in the source" if k else "never in the source",
            str(per_system[0].words),
            *(f"{g.recall:.1f}" if g.words else "–" for g in per_system),
        )
        for k, per_system in enumerate(zip(*groups, strict=True))
    ]
    if target is not None:
        with target.open(encoding="utf-8-sig", errors="replace") as lines:
            special = domain_words((normalise(line) for line in lines), source_lines)
        found = [word_recall(m, dict.fromkeys(special, "domain")).get("domain") for m in measured]
        size = str(found[0].words) if found[0] else "0"
        rows.append(("words of the target domain", size, *(f"{g.recall:.1f}" if g else "–" for g in found)))
    columns = ("Words", "Count", *(s.name for s in results.systems))
    return Table("Words right (%)", columns, tuple(rows))


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def render(table: Table, style: Style) -> str:
    """The table as text in one of the styles; `json` is a list of objects."""
    renderers: dict[str, Callable[[Table], str]] = {
        "terminal": _terminal,
        "markdown": _markdown,
        "latex": _latex,
        "csv": _csv,
        "json": _json,
    }
    if style not in renderers:
        raise BadInputError(f"no table style {style!r}; choose one of {', '.join(get_args(Style))}")
    return renderers[style](table)


def render_all(tables: Sequence[Table], style: Style) -> str:
    """Several tables as one text; `json` is one object, each table under its title."""
    if style == "json":
        return json.dumps({t.title: _objects(t) for t in tables}, ensure_ascii=False, indent=1) + "\n"
    return "\n".join(render(t, style) for t in tables)


def rich_table(table: Table) -> Any:
    """For printing with rich: right-aligned figures, a line between models, the best row bold."""
    from rich import box
    from rich.table import Table as RichTable

    out = RichTable(title=table.title, caption=table.note, box=box.SIMPLE_HEAD, title_justify="left")
    out.caption_justify = "left"
    for k, column in enumerate(table.columns):
        out.add_column(column, justify="left" if k < 2 else "right", no_wrap=True)
    for k, row in enumerate(table.rows):
        if k in table.groups and k:
            out.add_section()
        out.add_row(*row, style="bold" if k in table.best else None)
    return out


def _terminal(table: Table) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=130, force_terminal=False).print(rich_table(table))
    return out.getvalue()


def _markdown(table: Table) -> str:
    align = ["---" if k < 2 else "---:" for k in range(len(table.columns))]
    lines = [_pipes(table.columns), _pipes(align)]
    for k, row in enumerate(table.rows):
        cells = [c.replace("|", "\\|") for c in row]
        lines.append(_pipes([f"**{c}**" for c in cells] if k in table.best else cells))
    return "\n".join(lines) + (f"\n\n{table.note}\n" if table.note else "\n")


def _pipes(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "–": "--", "<": "$<$", "…": r"\ldots{}",
    "λ": r"$\lambda$", "μ": r"$\mu$", "Δ": r"$\Delta$",
}  # fmt: skip


def _escape(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text.replace("λ_T", "\0")).replace("\0", r"$\lambda_T$")


def _latex(table: Table) -> str:
    columns = "ll" + "r" * (len(table.columns) - 2)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_escape, table.columns)) + r" \\",
    ]
    for k, row in enumerate(table.rows):
        if k in table.groups or k == 0:
            lines.append(r"\midrule")
        cells = [_escape(c) for c in row]
        lines.append(" & ".join(rf"\textbf{{{c}}}" if k in table.best else c for c in cells) + r" \\")
    note = [f"% {table.note}"] if table.note else []
    return "\n".join([*note, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([c.replace("−", "-") for c in row] for row in table.rows)
    return out.getvalue()


def _json(table: Table) -> str:
    return json.dumps(_objects(table), ensure_ascii=False, indent=1) + "\n"


def _objects(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
