"""No number in a table of the README or the study's guide that is not in a results file of the repository.

A table with measured numbers names its file in a comment above it:

    <!-- numbers: results/study-small/cross.json -->

Every number with a decimal point in that table must then be in that file, rounded as the table rounds it. Other guides
may name files in the same way; what they name is checked too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MUST_NAME = ("README.md", "docs/study.md", "docs/study-paper.md", "docs/study-recordings.md")
NUMBER = re.compile(r"(?<![\w.,])[−+-]?\d[\d,]*\.\d+(?![\w.])")
MARKER = re.compile(r"<!-- numbers: (\S+) -->")


def tables(text: str) -> Iterator[tuple[int, list[str], str | None]]:
    """(line number, rows, file named) of each Markdown table."""
    lines = text.splitlines()
    start = None
    for i, line in enumerate([*lines, ""]):
        inside = line.lstrip().startswith("|")  # tables of a list are indented
        if inside and start is None:
            start = i
        elif not inside and start is not None:
            above = "\n".join(lines[max(0, start - 3) : start])
            named = MARKER.findall(above)
            yield start + 1, lines[start:i], named[-1] if named else None
            start = None


def leaves(value: Any) -> Iterator[float]:
    """Every number of a JSON document, those written inside its texts included."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from (as_number(found) for found in NUMBER.findall(value)) if len(value) < 300 else ()
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


def known(found: str, values: set[float]) -> bool:
    """Whether a value rounds to what is written; millions (parameters) and relative changes may be written too."""
    decimals, wanted = len(found.split(".")[1]), as_number(found)
    return any(
        abs(round(value * scale, decimals) - wanted) < 10**-decimals / 100
        for value in values
        for scale in (1, 1e-6, -1)
    )


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda p: p.name)
def test_numbers_come_from_results(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    for line, rows, file in tables(path.read_text(encoding="utf-8")):
        numbers = [n for row in rows for n in NUMBER.findall(re.sub(r"`[^`]*`", "", row))]
        if not numbers or (file is None and name not in MUST_NAME):
            continue
        assert file is not None, f"{name}, line {line}: a table with {numbers[0]} names no results file"
        source = ROOT / file
        assert source.is_file(), f"{name}, line {line} names {file}, which is not there"
        values = set(leaves(json.loads(source.read_text(encoding="utf-8"))))
        unknown = [n for n in numbers if not known(n, values)]
        assert not unknown, f"{name}, line {line}: {', '.join(unknown)} not in {file}"


def test_the_check_itself(tmp_path: Path) -> None:
    values = set(leaves({"results": [{"test_wer": 17.9412, "parameters": 7530728}], "note": "29.1 % fewer"}))
    assert known("17.94", values) and known("7.5", values) and known("29.1", values)
    assert not known("17.95", values) and not known("7.6", values)
    text = "<!-- numbers: a.json -->\n\n| a | b |\n| --- | --- |\n| x | 1.25 |\n\n| c |\n| 2 |\n"
    assert [(line, named) for line, _, named in tables(text)] == [(3, "a.json"), (7, None)]
