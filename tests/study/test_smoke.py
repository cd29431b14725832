"""The tiny study, every stage: killed after each of them and in the middle of one, it gives the same tables.

Then its outputs are packed, unpacked elsewhere, bundled, and the demonstration decodes the bundle.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ilme.evaluation.results import Results
from ilme.models.checkpoint import load_checkpoint
from ilme.study.archive import pack, unpack
from ilme.study.bundling import BundleOptions, build_bundle
from ilme.study.config import read_config
from ilme.study.runner import Study
from ilme.study.stages import build_study
from ilme.workflows.bundle import read_bundle
from ilme.workflows.demo import DemoOptions, run_demo, write_demo_report

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "configs" / "study" / "tiny.yaml"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("espeakng_loader", reason="the study speaks: pip install 'ilme[synth]'")
    pytest.importorskip("lightning_fabric", reason="the study trains: pip install 'ilme[train]'")
    monkeypatch.chdir(ROOT)


def tables(out: Path) -> dict[str, Any]:
    """What the tables are made of, without what a clock says."""
    found: dict[str, Any] = {"perplexity": json.loads((out / "tables/perplexity.json").read_text())}
    for setting in ("cross", "intra"):
        data = json.loads((out / f"tables/{setting}.json").read_text())
        for row in data["results"]:
            del row["seconds"]
        found[setting] = [data["results"], data["hypotheses"], data["references"]]
    return found


def kill_in_the_middle(out: Path, stage: str) -> None:
    """Starts the study in a process of its own and ends it with SIGKILL at the stage's first checkpoint."""
    command = [sys.executable, "-m", "ilme.cli", "study", str(PLAN), "--out", str(out), "--until", stage]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not list((out / stage / "checkpoints").glob("step-*/state.json")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"no checkpoint of {stage} appeared; the process ended with {process.returncode}")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def one_stage_at_a_time(out: Path) -> Study:
    """A new study object for each stage, as after a kill; what was done before is found on the disk alone."""
    config = read_config(PLAN)
    for name in build_study(config, out, "cpu").stages:
        study = build_study(config, out, "cpu")
        study.run(until=name)
        assert study.done(name)
    return study


@pytest.mark.slow
def test_killed_and_restarted_gives_the_same_tables(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    study = build_study(read_config(PLAN), whole, "cpu")
    assert study.run() == list(study.stages)

    kill_in_the_middle(pieces, "rnnt")
    assert not (pieces / "rnnt/done.json").exists()
    one_stage_at_a_time(pieces)
    assert tables(pieces) == tables(whole)

    results = Results.load(whole / "tables/cross.json")
    assert [s.name for s in results.systems][:5] == ["rnnt BS", "rnnt SF", "rnnt DR", "rnnt LODR", "rnnt ILME"]
    sizes = {s.method: s.parameters for s in results.systems if s.model == "aed"}
    assert sizes["BS"] < sizes["SF"] == sizes["ILME"] < sizes["DR"]
    check_side_by_side(whole, tmp_path / "beside")
    check_parcels(study, tmp_path)
    check_bundle(whole, tmp_path)


def check_side_by_side(whole: Path, beside: Path) -> None:
    """Methods in processes of their own find what one after another finds, also where their time was up before."""
    shutil.copytree(whole, beside)
    for stage in ("tune-aed-cross", "test-aed-cross"):
        shutil.rmtree(beside / stage)
    study = build_study(read_config(PLAN), beside, "cpu", processes=2)
    assert study.run(["test-aed-cross"], minutes=0.005) == [] and not study.done("tune-aed-cross")
    assert [path.name for path in (beside / "tune-aed-cross").glob("*.json")] == ["begun.json"]
    assert study.run(["test-aed-cross"]) == ["tune-aed-cross", "test-aed-cross"]
    first, second = (Results.load(out / "test-aed-cross/results.json") for out in (whole, beside))
    for a, b in zip(first.systems, second.systems, strict=True):
        assert (a.name, a.weights, a.dev_wer, a.hypotheses) == (b.name, b.weights, b.dev_wer, b.hypotheses)


def check_parcels(study: Study, tmp_path: Path) -> None:
    """Stages come back from parcels as done, and the models as they were, to half precision."""
    files = pack(study, tmp_path / "parcels")
    assert {f.name for f in files} == {
        "speech.tar", "lm-source.tar", "lm-target.tar", "lm-mixed.tar", "rnnt.tar", "aed.tar", "results.tar"
    }  # fmt: skip
    unpack(tmp_path / "parcels", tmp_path / "elsewhere")
    there = build_study(read_config(PLAN), tmp_path / "elsewhere", "cpu")
    left = {name for name in there.stages if not there.done(name)}
    assert left == {"text", "sets"}  # the same again from the seed
    assert there.select() == ["tables"]
    ours, theirs = (load_checkpoint(s.folder("rnnt")).model.state_dict() for s in (study, there))
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() <= 1e-3 * value.abs().max() + 1e-6


def check_bundle(study: Path, tmp_path: Path) -> None:
    """A bundle of the tiny models; the demonstration measures what the bundle says of itself."""
    folder, out = tmp_path / "bundle", tmp_path / "demo"
    options = BundleOptions(dev=4, test=5, beam=2)
    bundle = build_bundle(study, folder, options)
    results = run_demo(out, DemoOptions(threads=1), bundle)
    written = json.loads((out / "results.json").read_text())
    assert written["utterances"] == 5 and len(written["results"]) == 8 and written["audio_seconds"] > 5
    wanted = {
        "model", "method", "lambda_t", "mu", "dev_wer", "test_wer", "ci95", "substitutions", "deletions", "insertions",
        "parameters", "seconds",
    }  # fmt: skip
    assert all(wanted <= row.keys() for row in written["results"])
    stored = {(s.model, s.method): s.test_wer for s in bundle.systems}
    further = run_demo(tmp_path / "further", DemoOptions(method="ILME-learned", threads=1), bundle)
    learned = {("rnnt", "ILME-learned"), ("aed", "ILME-learned")}
    assert {(s.model, s.method) for s in further.systems} == learned < stored.keys()
    assert {(r["model"], r["method"]): r["test_wer"] for r in written["results"]} == {
        system: wer for system, wer in stored.items() if system not in learned
    }
    write_demo_report(out / "report.html", [results])
    assert "<html" in (out / "report.html").read_text()[:500]

    only = run_demo(out, DemoOptions(model="aed", method="ILME", threads=1, retune=True), bundle)
    assert [s.name for s in only.systems] == ["aed ILME"]
    assert only.systems[0].hypotheses.keys() == results.references.keys()

    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    with (damaged / "lm.safetensors").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\0\1\2\3\4\5\6\7")
    from ilme.errors import CheckpointError

    with pytest.raises(CheckpointError, match=r"lm\.safetensors is damaged"):
        read_bundle(damaged).unpack(tmp_path / "fresh")
