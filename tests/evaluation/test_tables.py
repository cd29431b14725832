"""Each style of a table, letter by letter."""

from __future__ import annotations

import json
import types

import pytest

from ilme.evaluation.significance import Comparison
from ilme.evaluation.tables import Table, comparison_table, p_value, render, rich_table

TABLE = Table(
    "Word error rate (%)",
    ("Model", "Method", "λ_T", "vs BS (%)"),
    (("a|b", "BS", "–", "−1.5"), ("a|b", "SF", "0.1", "<2"), ("c_d", "BS", "–", "0")),
    groups=(0, 2),
    best=(1, 2),
    note="a note",
)


def test_markdown() -> None:
    assert render(TABLE, "markdown").splitlines() == [
        "| Model | Method | λ_T | vs BS (%) |",
        "| --- | --- | ---: | ---: |",
        r"| a\|b | BS | – | −1.5 |",
        r"| **a\|b** | **SF** | **0.1** | **<2** |",
        "| **c_d** | **BS** | **–** | **0** |",
        "",
        "a note",
    ]


def test_latex() -> None:
    assert render(TABLE, "latex").splitlines() == [
        "% a note",
        r"\begin{tabular}{llrr}",
        r"\toprule",
        r"Model & Method & $\lambda_T$ & vs BS (\%) \\",
        r"\midrule",
        r"a|b & BS & -- & $-$1.5 \\",
        r"\textbf{a|b} & \textbf{SF} & \textbf{0.1} & \textbf{$<$2} \\",
        r"\midrule",
        r"\textbf{c\_d} & \textbf{BS} & \textbf{--} & \textbf{0} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_and_json() -> None:
    assert render(TABLE, "csv") == "Model,Method,λ_T,vs BS (%)\na|b,BS,–,-1.5\na|b,SF,0.1,<2\nc_d,BS,–,0\n"
    assert json.loads(render(TABLE, "json"))[0] == {"Model": "a|b", "Method": "BS", "λ_T": "–", "vs BS (%)": "−1.5"}


def test_the_terminal_has_names_at_the_left_and_figures_at_the_right() -> None:
    made = rich_table(TABLE)
    assert [column.justify for column in made.columns] == ["left", "left", "right", "right"]
    assert [row.style for row in made.rows] == [None, "bold", "bold"]
    assert [row.end_section for row in made.rows] == [False, True, False], (
        "a line between models, none before the first"
    )
    lines = render(TABLE, "terminal").splitlines()
    assert "Word error rate (%)" in lines[0] and "a note" in lines[-1]


@pytest.mark.parametrize(("p", "text"), [(0.0009, "<0.001"), (0.001, "0.001"), (0.0499, "0.050"), (1.0, "1.000")])
def test_p_values_have_three_decimals(p: float, text: str) -> None:
    assert p_value(p) == text


def test_the_row_of_a_comparison_to_the_last_figure() -> None:
    """What is printed is the change of the first system: signs are turned, and the ends of the interval with them."""
    pairs = (
        Comparison("new", "old", 1.5, 12.345, (0.254, 2.746), 0.0204, 0.0004),
        Comparison("old", "new", -1.5, -14.0, (-2.746, -0.254), 0.5, None),
    )
    results = types.SimpleNamespace(comparisons=pairs)
    table = comparison_table(results)  # type: ignore[arg-type]
    assert table.rows == (
        ("new", "old", "−1.50", "−2.75 … −0.25", "−12.3", p_value(0.0204), p_value(0.0004)),
        ("old", "new", "+1.50", "+0.25 … +2.75", "+14.0", p_value(0.5), "–"),
    )
