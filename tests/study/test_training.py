"""How long a study trains a network: as many steps as its plan says, or for so many minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError
from ilme.study.config import read_config
from ilme.study.runner import Study
from ilme.study.stages import build_study

ROOT = Path(__file__).parents[2]


def study_of(out: Path, **loop: Any) -> Study:
    """The tiny study with another loop for its source LM."""
    config = read_config(ROOT / "configs" / "study" / "tiny.yaml")
    kept = {k: v for k, v in config.source_lm.loop.items() if k not in ("steps", "patience")}
    return build_study(replace(config, source_lm=replace(config.source_lm, loop=kept | loop)), out, "cpu")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning_fabric", reason="the study trains: pip install 'ilme[train]'")
    monkeypatch.chdir(ROOT)


def test_minutes_are_the_time_of_the_network_over_all_runs(tmp_path: Path) -> None:
    study = study_of(tmp_path, minutes=0.02)
    ran = study.run(only=["lm-source"])
    assert ran[-1] == "lm-source"
    facts = study.facts("lm-source")
    assert facts["steps"] > 5 and 1.2 <= facts["training_seconds"] < 10
    assert study_of(tmp_path, minutes=0.02).run(only=["lm-source"]) == []


def test_steps_win_over_minutes(tmp_path: Path) -> None:
    study = study_of(tmp_path, minutes=1e-6, steps=7)
    study.run(only=["lm-source"])
    assert study.facts("lm-source")["steps"] == 7


def test_a_plan_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="lm-source: loop needs steps, or minutes to train for"):
        study_of(tmp_path).run(only=["lm-source"])
