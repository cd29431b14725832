"""Perplexity curves of a study's networks, also of those that went on from earlier runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ilme.models.checkpoint import save_model
from ilme.study.config import read_config
from ilme.study.outcome import perplexity_curves
from ilme.study.runner import Study
from ilme.study.training import fresh_network, keep_earlier_journal
from ilme.testing import numbered_tokens

PLAN = read_config(Path(__file__).parents[2] / "configs" / "study" / "tiny.yaml").rnnt


def run(folder: Path, *looks: tuple[int, float, float]) -> Path:
    """The folder of a finished run: its journal and its model, whose path is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [{"step": s, "hours": h, "ilm_ppl": p, "ilm_ppl_target": 2 * p} for s, h, p in looks]
    last = {"step": looks[-1][0] + 1, "hours": looks[-1][1] + 0.5, "loss": 9.0}  # trained on after the last look
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, last)))
    save_model(folder / "model.safetensors", fresh_network("rnnt", PLAN, numbered_tokens(9, "transducer"), 1))
    return folder / "model.safetensors"


def curve_of(out: Path) -> dict[str, list[float]]:
    facts = {"source_ppl_token": 10.0, "target_ppl_token": 20.0}
    study = SimpleNamespace(folder=lambda name: out / name, facts=lambda name: facts)
    curves = perplexity_curves(cast(Study, study), ("rnnt",))
    assert curves["source_lm"] == {"source": 10.0, "target": 20.0}
    return cast(dict[str, list[float]], curves["models"]["rnnt"])


def test_a_run_has_its_own_points(tmp_path: Path) -> None:
    run(tmp_path / "rnnt", (10, 1.0, 50.0), (20, 2.0, 40.0))
    expected = {"hours": [1.0, 2.0], "steps": [10, 20], "source": [50.0, 40.0], "target": [100.0, 80.0]}
    assert curve_of(tmp_path) == expected


def test_a_run_that_went_on_has_the_earlier_ones_points_before_its_own(tmp_path: Path) -> None:
    first = run(tmp_path / "first" / "rnnt", (10, 1.0, 50.0), (30, 3.0, 30.0))
    for name, before in (("second", first), ("third", tmp_path / "second" / "rnnt" / "model.safetensors")):
        run(tmp_path / name / "rnnt", (5, 0.5, 60.0))
        keep_earlier_journal(tmp_path / name / "rnnt", "rnnt", replace(PLAN, starts_from=str(before)))
    curve = curve_of(tmp_path / "third")
    assert curve["hours"] == [1.0, 3.0, 4.0, 5.0]
    assert curve["steps"] == [10, 30, 36, 42]
    assert curve["source"] == [50.0, 30.0, 60.0, 60.0]


def test_a_network_of_another_kind_gives_no_points(tmp_path: Path) -> None:
    """It gave its encoder alone."""
    first = run(tmp_path / "first" / "rnnt", (10, 1.0, 50.0))
    keep_earlier_journal(tmp_path, "aed", replace(PLAN, starts_from=str(first)))
    assert not (tmp_path / "earlier.jsonl").exists()
