"""One result object, five kinds of table, and files that are damaged or of another version."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ilme.data.utterances import Reference
from ilme.errors import BadInputError
from ilme.evaluation.results import Results, System, merge_results
from ilme.evaluation.tables import comparison_table, main_table, recall_table, render
from ilme.fusion import FusionWeights


def example(seed: int = 0, utterances: int = 40) -> Results:
    g = np.random.default_rng(seed)
    references, texts = {}, {"BS": {}, "SF": {}, "ILME": {}}
    rates = {"BS": 0.3, "SF": 0.25, "ILME": 0.12}
    for u in range(utterances):
        words = [f"w{k}" for k in g.integers(0, 50, size=12)]
        references[f"u{u}"] = Reference(" ".join(words), f"s{u // 5}", 2.5)
        for method, rate in rates.items():
            texts[method][f"u{u}"] = " ".join("oops" if g.random() < rate else w for w in words)
    weights = {"BS": FusionWeights(), "SF": FusionWeights(0.1), "ILME": FusionWeights(0.3, 0.2)}
    systems = tuple(
        System("rnnt", m, weights[m], texts[m], dev_wer=10.0, parameters=76_360_000, seconds=3.0, beam=8) for m in rates
    )
    return Results("novels test", "none", references, systems)


def test_rows_are_counted_from_the_texts() -> None:
    data = example().to_json()
    row = data["results"][2]
    assert (row["model"], row["method"], row["lambda_t"], row["mu"]) == ("rnnt", "ILME", 0.3, 0.2)
    assert row["substitutions"] + row["deletions"] + row["insertions"] == pytest.approx(
        row["test_wer"] * row["words"] / 100, abs=0.01
    )
    assert row["ci95"][0] < row["test_wer"] < row["ci95"][1]
    assert row["speakers"] == 8
    assert data["utterances"] == 40 and data["audio_seconds"] == 100.0
    assert {"dev_wer", "parameters", "seconds"} <= row.keys()


def test_every_pair_of_one_model_is_compared() -> None:
    results = example()
    assert [(c.a, c.b) for c in results.comparisons] == [
        ("rnnt SF", "rnnt BS"),
        ("rnnt ILME", "rnnt BS"),
        ("rnnt ILME", "rnnt SF"),
    ]
    found = results.comparison("rnnt ILME", "rnnt BS")
    assert found is not None and found.relative > 30 and found.p_bootstrap < 0.01
    other = replace(results, systems=(*results.systems, replace(results.systems[0], model="aed")))
    assert all("aed" not in (c.a + c.b) for c in other.comparisons)


def test_a_file_gives_the_object_back(tmp_path: Path) -> None:
    results = example()
    path = tmp_path / "out" / "results.json"
    results.save(path)
    loaded = Results.load(path)
    assert loaded == results
    assert loaded.to_json() == results.to_json()
    assert not list(path.parent.glob(".*"))


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    example().save(path)
    data = json.loads(path.read_text())
    cases = {
        r"version 7 and this ilme reads 1": {**data, "version": 7},
        r"not a results file": {"a": 1},
        r"damaged.*references": {k: v for k, v in data.items() if k != "references"},
        r"damaged.*rnnt SF": {**data, "hypotheses": {"rnnt BS": {}}},
    }
    for message, content in cases.items():
        path.write_text(json.dumps(content))
        with pytest.raises(BadInputError, match=message):
            Results.load(path)
    path.write_text(json.dumps(data)[:-50])
    with pytest.raises(BadInputError, match="not JSON"):
        Results.load(path)
    with pytest.raises(BadInputError, match="no results file"):
        Results.load(tmp_path / "absent.json")


def test_merging_needs_one_test_set() -> None:
    results = example()
    a, b = (replace(results, systems=results.systems[k : k + 1]) for k in (0, 2))
    assert [s.method for s in merge_results([a, b], "both").systems] == ["BS", "ILME"]
    with pytest.raises(BadInputError, match="two systems are called 'rnnt BS'"):
        merge_results([a, a])
    with pytest.raises(BadInputError, match="normaliser"):
        merge_results([a, replace(b, normaliser="spoken")])
    fewer = replace(b, references=dict(list(b.references.items())[1:]))
    with pytest.raises(BadInputError, match=r"1 utterances differ.*'u0'"):
        merge_results([a, fewer])
    with pytest.raises(BadInputError, match="no results"):
        merge_results([])


def test_tables_agree_in_every_style() -> None:
    results = example()
    table = main_table(results)
    assert [row[1] for row in table.rows] == ["BS", "SF", "ILME"]
    assert table.best == (2,) and table.groups == (0,)
    wer = f"{results.measurements['rnnt ILME'].rate:.2f}"
    for style in ("terminal", "markdown", "latex", "csv", "json"):
        text = render(table, style)  # type: ignore[arg-type]
        assert wer in text and "ILME" in text
    rows = list(csv.reader(io.StringIO(render(table, "csv"))))
    assert len(rows) == 4 and rows[3][6] == wer and rows[3][11].startswith("-")
    assert json.loads(render(table, "json"))[2]["Test WER"] == wer
    markdown = render(table, "markdown").splitlines()
    assert markdown[1].startswith("| --- | --- | ---:") and f"**{wer}**" in markdown[4]
    latex = render(table, "latex")
    assert latex.count(r"\\") == 4 and r"$\lambda_T$" in latex and r"95 \% interval" in latex
    assert rf"\textbf{{{wer}}}" in latex
    assert "normaliser none" in render(table, "terminal")
    pairs = comparison_table(results)
    assert pairs.rows[1][:2] == ("rnnt ILME", "rnnt BS") and pairs.rows[1][2].startswith("−")
    with pytest.raises(BadInputError, match="no table style"):
        render(table, "word")  # type: ignore[arg-type]


def test_recall_of_rare_and_domain_words(tmp_path: Path) -> None:
    results = example()
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("\n".join(["w1 w2 w3 w4"] * 20 + ["w5"]))
    target.write_text("\n".join(["w1 w40 w41"] * 5))
    table = recall_table(results, source, target)
    assert table.columns[:2] == ("Words", "Count") and table.columns[2:] == tuple(s.name for s in results.systems)
    assert sum(int(row[1]) for row in table.rows[:-1]) == 480  # every reference word is in one group
    words = [w for r in results.references.values() for w in r.text.split()]
    assert table.rows[-1][1] == str(sum(w in ("w40", "w41") for w in words))
    assert float(table.rows[0][4]) > float(table.rows[0][2])  # ILME has more of the unseen words right than BS
    assert "never in the source" in render(table, "terminal")


def test_groups_are_in_the_file() -> None:
    data = example().to_json()
    groups = data["groups"]["rnnt BS"]
    assert len(groups["by_speaker"]) == 8 and list(groups["by_length"]) == ["11–20"]
    assert sum(g["words"] for g in groups["by_speaker"].values()) == data["results"][0]["words"]


def test_latex_escapes() -> None:
    results = example()
    odd = replace(results, systems=tuple(replace(s, model="a_b&c%") for s in results.systems))
    assert r"a\_b\&c\%" in render(main_table(odd), "latex")
