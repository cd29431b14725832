"""No measured number in a table of the README or of docs/results that is not in a results file of the repository.

A table with measured numbers names its file in a comment above it, and a place inside the file where that matters:

    <!-- numbers: docs/results/data/study-small.json -->
    <!-- numbers: docs/results/data/study-small.json#cross -->

Every number with a decimal point in that table must then be there, rounded as the table rounds it. Where the file has
entries that are called like the cells of a row (its domain, system or format), the row's numbers must be in those. And
all numbers of a column must stand at one place of their rows' entries, under one key: two cells that were exchanged in
a row are no longer found there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.docs.pages import PAGES, ROOT, name

NUMBER = re.compile(r"(?<![\w.,])[−+-]?\d[\d,]*\.\d+(?![\w.])")
MARKER = re.compile(r"<!-- numbers: ([^\s#]+)(?:#(.+?))? -->")
DATA = ROOT / "docs" / "results" / "data"
UNFILED = {  # tables whose numbers were printed and not kept: page, first cell of the head
    ("README.md", "models"),  # wav2vec 2.0 is a name
    ("docs/results/text-tools.md", "what"),
    ("docs/results/decoding-speed.md", "idea"),
    ("docs/results/decoding-speed.md", "gate, shortlist"),
    ("docs/results/training-speed.md", "decoder loop, 41 steps, forward and backward"),
}


GATHERED = {  # tables with columns that one key does not give: page, first cell of the head; why
    ("docs/results/learned-internal-lm.md", "networks of those tables, perplexity per token"): "a key for each row",
    ("docs/results/study-paper-earlier.md", "RNN-T, 76.36 M, ten minutes, no LM, beam 25"): "a key for each row",
    (
        "docs/results/study-recordings-earlier.md",
        "200 training utterances (17.8 minutes), 200 units",
    ): "the first row has a key of its own",
    ("docs/results/study-small-earlier.md", "held-out loss per unit"): "the last of lists that differ in length",
    ("docs/results/training-speed.md", ""): "with and without graphs have keys of their own",
    ("docs/results/weights-without-dev.md", "internal LM, λ_T, μ"): "no LM has a key of its own",
    ("docs/results/whisper-audiobooks.md", "run"): "runs were kept in two forms",
    ("docs/results/whisper-speed.md", "system"): "the batch is part of the entry, not of the row",
}


class Table(NamedTuple):
    line: int
    rows: list[str]
    file: str
    place: str


def tables(text: str) -> Iterator[Table]:
    """Each Markdown table with the file that it names, if it names one."""
    lines = text.splitlines()
    start = None
    for i, line in enumerate([*lines, ""]):
        inside = line.startswith("|")
        if inside and start is None:
            start = i
        elif not inside and start is not None:
            named = MARKER.findall("\n".join(lines[max(0, start - 3) : start]))
            yield Table(start + 1, lines[start:i], *(named[-1] if named else ("", "")))
            start = None


def cells(row: str) -> list[str]:
    """Without emphasis."""
    return [cell.strip() for cell in re.sub(r"[*`]", "", row).strip("|").split("|")]


def numbers(row: str) -> list[str]:
    return NUMBER.findall(re.sub(r"`[^`]*`", "", row))


def leaves(value: Any, key: tuple[str | int, ...] = ("",)) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Every number of a JSON document, those written inside its texts included.

    With the last key on the way to it, and the places in lists after that.
    """
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield key, float(value)
    elif isinstance(value, str):
        found = NUMBER.findall(value) if len(value) < 300 else []
        yield from (((*key, k), as_number(text)) for k, text in enumerate(found))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (name,))
    else:
        for k, item in enumerate(value):
            yield from leaves(item, (*key, k))


def entries(value: Any, wanted: str) -> Iterator[Any]:
    """What stands under a key that is called so, and the objects of which one text says so."""
    if isinstance(value, dict):
        if wanted in value.values():
            yield value
        for key, item in value.items():
            if key == wanted and isinstance(item, dict | list):
                yield item
            yield from entries(item, wanted)
    elif isinstance(value, list):
        for item in value:
            yield from entries(item, wanted)


def entries_of(row: str, source: Any) -> list[Any]:
    """The entries that the row's texts name, cell by cell narrower; the whole source where they name none."""
    found = [source]
    for cell in cells(row):
        if re.search(r"[A-Za-z]", cell):
            found = list(entries(found, cell)) or found
    return found


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


def known(found: str, values: set[float]) -> bool:
    """Whether a value rounds to what is written; millions, seconds of milliseconds and changes of sign too."""
    decimals, wanted = len(found.split(".")[1]), as_number(found)
    return any(
        abs(round(value * scale, decimals) - wanted) < 10**-decimals / 100
        for value in values
        for scale in (1, 1e-6, 1e-3, -1)
    )


def at(place: str, source: Any) -> Any:
    for part in place.split("/") if place else ():
        source = source[part]
    return source


def unknown(table: Table, source: Any) -> Iterator[str]:
    source = at(table.place, source)
    for i, row in enumerate(table.rows):
        wanted = numbers(row)
        values = {value for _, value in leaves(entries_of(row, source) if i else source)} if wanted else set()
        yield from (f"{number} ({cells(row)[0]})" for number in wanted if not known(number, values))


def misplaced(table: Table, source: Any) -> Iterator[str]:
    """Columns whose numbers have no place in common; of a cell with several numbers, each for itself."""
    source, columns = at(table.place, source), {}
    for row in table.rows[2:]:
        if not numbers(row):
            continue
        placed = list(leaves(entries_of(row, source)))
        for column, cell in enumerate(cells(row)):
            for k, number in enumerate(numbers(cell)):
                places = {key for key, value in placed if known(number, {value})}
                columns.setdefault((column, k), []).append(places)
    head = cells(table.rows[0])
    yield from (head[column] for (column, _), places in columns.items() if not set.intersection(*places))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_numbers_come_from_results(page: Path) -> None:
    must = name(page) == "README.md" or page.parent.name == "results"
    for table in tables(page.read_text(encoding="utf-8")):
        found = [n for row in table.rows for n in numbers(row)]
        if not table.file and found and must:
            said = (name(page), cells(table.rows[0])[0])
            assert said in UNFILED, f"{name(page)}, line {table.line}: a table with {found[0]} names no results file"
        if table.file:
            source = ROOT / table.file
            assert source.is_file(), f"{name(page)}, line {table.line} names {table.file}, which is not there"
            missing = list(unknown(table, json.loads(source.read_text(encoding="utf-8"))))
            assert not missing, f"{name(page)}, line {table.line}: {', '.join(missing)} not in {table.file}"


@pytest.mark.parametrize("page", [p for p in PAGES if "<!-- numbers:" in p.read_text(encoding="utf-8")], ids=name)
def test_each_column_has_one_place_in_the_entries_of_its_rows(page: Path) -> None:
    for table in tables(page.read_text(encoding="utf-8")):
        if table.file:
            found = list(misplaced(table, json.loads((ROOT / table.file).read_text(encoding="utf-8"))))
            gathered = (name(page), cells(table.rows[0])[0]) in GATHERED
            where = f"{name(page)}, line {table.line}"
            assert gathered or not found, (
                f"{where}: {', '.join(found)} has numbers of several keys: are cells exchanged?"
            )


def test_every_cited_results_file_is_published_and_every_published_one_cited() -> None:
    """The rule of experiments/README.md: docs/results/data has what a page cites, experiments/results the rest."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent != ROOT / "experiments")
    uncited = [file.name for file in DATA.glob("*.json") if file.name not in text]
    assert not uncited, f"no page cites {', '.join(uncited)}: git mv to experiments/results"
    cited = [file.name for file in (ROOT / "experiments" / "results").glob("*.json") if file.name in text]
    assert not cited, f"a page cites {', '.join(cited)}: git mv to docs/results/data"


def test_the_check_itself() -> None:
    source = {"cross": [{"system": "rnnt ILME", "test WER": 17.9412, "parameters": 7530728}], "note": "29.1 % fewer"}
    values = {value for _, value in leaves(source)}
    assert known("17.94", values) and known("7.5", values) and known("29.1", values)
    assert not known("17.95", values) and not known("7.6", values)
    text = "<!-- numbers: a.json#cross -->\n\n| a | b |\n| --- | --- |\n| **rnnt ILME** | 17.94 |\n\n| c |\n| 2 |\n"
    first, second = tables(text)
    assert (first.line, first.file, first.place, second.file) == (3, "a.json", "cross", "")
    assert not list(unknown(first, source))
    wrong = Table(1, ["| system | WER |", "| rnnt ILME | 29.1 |"], "a.json", "")
    assert list(unknown(wrong, source)) == ["29.1 (rnnt ILME)"], "a number of another entry"


def test_cells_that_were_exchanged_are_noticed() -> None:
    source = {
        "rows": [
            {"system": "BS", "dev": 21.5, "test": [20.25, 22.75]},
            {"system": "SF", "dev": 20.5, "test": [19.5, 21.0]},
        ]
    }
    right = [
        "| system | dev | test, first – last |",
        "| --- | --- | --- |",
        "| BS | 21.5 | 20.25–22.75 |",
        "| SF | 20.5 | 19.5–21.0 |",
    ]
    assert not list(misplaced(Table(1, right, "", "rows"), source)) and not list(
        unknown(Table(1, right, "", ""), source)
    )
    for wrong, column in (
        ("| SF | 19.5 | 20.5–21.0 |", "dev"),
        ("| SF | 20.5 | 21.0–19.5 |", "test, first – last"),
        ("| SF | 21.0 | 19.5–20.5 |", "dev"),
    ):
        exchanged = Table(1, [*right[:3], wrong], "", "")
        assert not list(unknown(exchanged, source)), "every number is there"
        assert column in list(misplaced(exchanged, source))
    rows_exchanged = Table(1, [*right[:2], "| SF | 21.5 | 20.25–22.75 |"], "", "")
    assert list(unknown(rows_exchanged, source)) == ["21.5 (SF)", "20.25 (SF)", "22.75 (SF)"]
