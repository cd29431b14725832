"""Puts data, style and script into one file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ilme import __version__
from ilme.errors import BadInputError, UsageError
from ilme.evaluation.results import Results, merge_results
from ilme.evaluation.tables import main_table
from ilme.report.gather import gather_curves, gather_set
from ilme.report.opening import CHOSEN, gather_opening
from ilme.runtime.files import write_atomically

__all__ = ["ReportOptions", "build_report", "write_report"]

SCRIPTS = ("charts.js", "speakers.js", "transcripts.js", "stories.js", "opening.js", "main.js")


@dataclass(frozen=True)
class ReportOptions:
    """What to show.

    Attributes:
        title: At the top; made from the test sets' names if empty.
        audio: Recordings to embed at most.
        transcripts: Utterances to show at most, for each test set.
        recordings: To hear at the top, before and after.
    """

    title: str = ""
    audio: int = 40
    transcripts: int = 400
    recordings: int = 3

    def __post_init__(self) -> None:
        for name in ("audio", "transcripts", "recordings"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, got {getattr(self, name)}")


def write_report(out: Path, results: Sequence[Path], curves: Sequence[Path], options: ReportOptions) -> int:
    """Writes the report of these files; returns its size in bytes."""
    page = build_report(group_by_test_set([Results.load(p) for p in results]), curves, options)
    content = page.encode()
    write_atomically(out, content)
    return len(content)


def group_by_test_set(parts: Sequence[Results]) -> list[Results]:
    """Results on the same references are shown together; others each on their own."""
    groups: list[list[Results]] = []
    for part in parts:
        texts = {i: r.text for i, r in part.references.items()}
        for group in groups:
            same = {i: r.text for i, r in group[0].references.items()} == texts
            if same and group[0].normaliser == part.normaliser:
                group.append(part)
                break
        else:
            groups.append([part])
    return [merge_results(group) for group in groups]


def build_report(sets: Sequence[Results], curves: Sequence[Path] = (), options: ReportOptions | None = None) -> str:
    """The whole page as text."""
    options = options or ReportOptions()
    if not sets:
        raise BadInputError("a report needs at least one results file")
    series, over = gather_curves(curves)
    data = {
        "opening": gather_opening(sets, options.recordings),
        "sets": [gather_set(s, transcripts=options.transcripts, audio=options.audio) for s in sets],
        "curves": series,
        "curvesBy": over,
    }
    title = options.title or f"Recognition results: {', '.join(dict.fromkeys(s.name for s in sets))}"
    script = "\n".join(_file(name).replace('"use strict";\n', "", 1) for name in SCRIPTS)
    parts = {
        "title": escape(title),
        "style": _file("report.css"),
        "table": "".join(_plain_table(s) for s in sets),
        "footer": escape(_footer(sets)),
        "data": _json_for_html(data),
        "script": f'"use strict";\n{script}',
    }
    pieces = re.split(r"\{\{(\w+)\}\}", _file("report.html"))  # every second piece is a name
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def _file(name: str) -> str:
    return (files("ilme.report") / name).read_text(encoding="utf-8")


def _json_for_html(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain_table(results: Results) -> str:
    """For readers without scripts."""
    table = main_table(results)
    head = "".join(f"<th>{escape(c)}</th>" for c in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{escape(table.note)}</p>"


def _footer(sets: Sequence[Results]) -> str:
    told = {f"{key}: {value}" for s in sets for key, value in s.provenance.items() if value and key != CHOSEN}
    return " · ".join([f"Written by ilme {__version__}", *sorted(told)])
