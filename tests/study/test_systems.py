"""The plan of the systems' table, and a rehearsal of it at the size of the tiny study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ilme.errors import BadInputError
from ilme.models.checkpoint import load_checkpoint
from ilme.study.config import read_config
from ilme.study.stages import build_study, study_stages
from ilme.study.systems import plan_of, systems_table

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "configs" / "study"
SYSTEMS: list[dict[str, Any]] = yaml.safe_load((PLANS / "systems.yaml").read_text())["systems"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_plan_has_every_system_of_the_table() -> None:
    config = read_config(PLANS / "systems.yaml")
    assert config.networks == (
        "rnnt", "aed", "rnnt-hat", "rnnt-ilmt", "rnnt-tdt", "rnnt-ctc",
        "aed-ilmt", "aed-deep", "aed-cold", "aed-simple", "aed-component",
    )  # fmt: skip
    assert [n for n in config.networks if config.system(n).head == "ctc"] == ["rnnt-ctc"]
    stages = {stage.name: stage for stage in study_stages(read_config(PLANS / "tiny.yaml", {"systems": SYSTEMS}))}
    assert {"aed", "lm-mixed"} <= set(stages["aed-deep"].needs) and "aed" not in stages["aed-cold"].needs
    assert {"lm-source", "lm-target", "lm-mixed"} <= set(stages["aed-component"].needs)
    assert "ilm-aed-ilmt" in stages and "ilm-rnnt-hat" not in stages
    without = {stage.name: stage for stage in study_stages(read_config(PLANS / "tiny.yaml"))}
    for name in without.keys() - {"tables"}:  # a study that was run before needs nothing of it again
        assert stages[name].inputs == without[name].inputs and stages[name].needs == without[name].needs


def test_a_system_has_the_plan_of_its_model_but_for_what_it_says() -> None:
    config = read_config(PLANS / "systems.yaml")
    cold, deep = (plan_of(config, config.system(name)) for name in ("aed-cold", "aed-deep"))
    assert cold.network["decoder_hidden"] == 448 and cold.network["fusion"]["method"] == "cold"
    assert cold.network["fusion"]["lm"]["hidden"] == 448 and cold.loop == config.aed.loop
    assert deep.loop["minutes"] == 1.0 and deep.loop["average"] == config.aed.loop["average"]
    component = plan_of(config, config.system("aed-component"))
    assert component.network["fusion"]["lm"]["hidden"] == 352  # the source LM's
    assert plan_of(config, config.system("rnnt-hat")).network["hat"] is True


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ({"name": "x", "fusion": "cold"}, "give both, or none"),
        ({"name": "x", "replaced": True}, "give both, or none"),
        ({"name": "x", "model": "rnnt", "fusion": "cold", "lm": "mixed"}, "an LM inside is for model: aed"),
        ({"name": "x", "methods": ["XY"]}, "methods of x have 'XY'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(system: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        read_config(PLANS / "tiny.yaml", {"systems": [system]})


@pytest.mark.slow
def test_every_system_trains_recognises_and_stands_in_the_table(
    tmp_path: Path,
) -> None:
    pytest.importorskip("espeakng_loader", reason="the study speaks: pip install 'ilme[synth]'")
    pytest.importorskip("lightning_fabric", reason="the study trains: pip install 'ilme[train]'")
    fewer = [{**s, "methods": ["ILME"] if "methods" in s else ["BS"]} for s in SYSTEMS]
    fewer[3]["methods"] = ["SF", "ILME"]  # CTC's internal LM is another
    changes = {"systems": fewer, "decoding.settings": ["cross"], "decoding.methods": ["BS", "ILME"],
               "decoding.decodes": 1, "rnnt.loop.steps": 4, "aed.loop.steps": 4,
               "lm.loop.steps": 10, "source_lm.loop.steps": 10}  # fmt: skip
    config = read_config(PLANS / "tiny.yaml", changes)
    study = build_study(config, tmp_path, "cpu")
    assert study.run() == list(study.stages)
    rows = json.loads((tmp_path / "tables/systems.json").read_text())
    found = {(row["model"], row["system"]): row for row in rows}
    assert len(rows) == 4 + 3 + 4 + 3 and ("rnnt", "HAT + ILME") in found and ("aed", "Component") in found
    assert found["aed", "Cold"]["cross_parameters"] > found["aed", "ILME"]["cross_parameters"]
    assert all(row["training_minutes"] > 0 and "cross_wer" in row for row in rows)
    assert "cross_p" not in found["aed", "ILME"] and "cross_p" in found["aed", "Simple"]
    assert "| aed | Simple |" in (tmp_path / "tables/tables.md").read_text()
    assert len(systems_table(rows).rows) == len(rows)

    trained, target = load_checkpoint(tmp_path / "aed").model, load_checkpoint(tmp_path / "lm-target").model
    deep, component = (
        load_checkpoint(tmp_path / name).model for name in ("aed-deep", "aed-component/cross.safetensors")
    )
    assert torch.equal(deep.embedding.weight, trained.embedding.weight)  # frozen
    assert not torch.equal(deep.output.weight, trained.output.weight)  # trained on
    assert torch.equal(component.lm.project.weight, target.project.weight)  # replaced
    assert load_checkpoint(tmp_path / "rnnt-hat").model.config.hat
    tdt, rnnt = (load_checkpoint(tmp_path / name).model for name in ("rnnt-tdt", "rnnt"))
    assert tdt.durations == (0, 1, 2, 3, 4) and tdt.output.weight.shape == rnnt.output.weight.shape
    assert load_checkpoint(tmp_path / "rnnt-ctc").model.ctc is not None
