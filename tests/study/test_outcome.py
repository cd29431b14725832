"""Perplexity curves of a study's networks, also of one that went on from an earlier run's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ilme.checkpoint import save_model
from ilme.study.config import NetworkPlan, read_config
from ilme.study.outcome import perplexity_curves
from ilme.study.runner import Study
from ilme.study.training import fresh_network
from ilme.testing import numbered_tokens

PLAN = read_config(Path(__file__).parents[2] / "configs" / "study" / "tiny.yaml").rnnt


def journal(folder: Path, *looks: tuple[int, float, float]) -> None:
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [{"step": 1, "hours": 0.1, "loss": 9.0}]
    rows += [{"step": s, "hours": h, "ilm_ppl": p, "ilm_ppl_target": 2 * p} for s, h, p in looks]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def curve_of(out: Path, plan: NetworkPlan) -> dict[str, list[float]]:
    facts = {"source_ppl_token": 10.0, "target_ppl_token": 20.0}
    study = SimpleNamespace(folder=lambda name: out / name, facts=lambda name: facts)
    curves = perplexity_curves(cast(Study, study), {"rnnt": plan})
    assert curves["source_lm"] == {"source": 10.0, "target": 20.0}
    return cast(dict[str, list[float]], curves["models"]["rnnt"])


def test_a_run_has_its_own_points(tmp_path: Path) -> None:
    journal(tmp_path / "now" / "rnnt", (10, 1.0, 50.0), (20, 2.0, 40.0))
    curve = curve_of(tmp_path / "now", PLAN)
    assert curve == {"hours": [1.0, 2.0], "steps": [10, 20], "source": [50.0, 40.0], "target": [100.0, 80.0]}


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_a_run_that_went_on_has_the_earlier_points_before_its_own(tmp_path: Path, kind: str) -> None:
    """Hours and steps are counted on. From a network of another kind only the encoder came: no points."""
    journal(tmp_path / "before" / kind, (10, 1.0, 50.0), (30, 3.0, 30.0))
    journal(tmp_path / "now" / "rnnt", (5, 0.5, 60.0))
    model = tmp_path / "before" / kind / "model.safetensors"
    plan, tokens = PLAN, numbered_tokens(9, "transducer")
    if kind == "aed":
        plan, tokens = NetworkPlan("tiny"), numbered_tokens(9, "attention")
    save_model(model, fresh_network(kind, plan, tokens, 1))
    curve = curve_of(tmp_path / "now", replace(PLAN, starts_from=str(model)))
    if kind == "aed":
        assert curve["hours"] == [0.5]
        return
    assert curve["hours"] == [1.0, 3.0, 3.5]
    assert curve["steps"] == [10, 30, 35]
    assert curve["source"] == [50.0, 30.0, 60.0]
    (tmp_path / "before" / kind / "metrics.jsonl").unlink()
    assert curve_of(tmp_path / "now", replace(PLAN, starts_from=str(model)))["hours"] == [0.5]
