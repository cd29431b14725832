"""A run that is killed, stopped, or starved of disk goes on to the same weights, or says why it cannot."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.train.journal import read_metrics

from .tiny import make_trainer

SCRIPT = Path(__file__).with_name("tiny.py")
ROOT = Path(__file__).parents[2]


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(out), *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition: object, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "the run did not get that far"
        time.sleep(0.02)


def final_state(out: Path) -> dict[str, torch.Tensor]:
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    assert last.name == "step-00000030"
    return {f"{file.stem}/{k}": v for file in last.glob("*.safetensors") for k, v in load_file(file).items()}


def assert_same_run(found: Path, wanted: Path) -> None:
    a, b = final_state(found), final_state(wanted)
    assert a.keys() == b.keys() and any(key.startswith("average/") for key in a)
    assert all(torch.equal(a[k], b[k]) for k in a)
    for key in ("loss", "held_out_loss"):
        curves = [
            [(r["step"], r[key]) for r in read_metrics(out / "metrics.jsonl") if key in r] for out in (found, wanted)
        ]
        assert curves[0] == curves[1] and curves[0]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    make_trainer(out, average=0.9).run()
    return out


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_weights(tmp_path: Path, uninterrupted: Path) -> None:
    process = start(tmp_path, "average=0.9", "pause=0.25")
    wait_for(lambda: len(list((tmp_path / "checkpoints").glob("step-*"))) >= 1)
    time.sleep(0.25)  # a few steps beyond the checkpoint, which are lost and made again
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    left = tmp_path / "checkpoints" / ".step-00000099.0123abcd.partial"
    left.mkdir()  # as a kill in the middle of a write does
    make_trainer(tmp_path, average=0.9).run(resume=True)
    assert_same_run(tmp_path, uninterrupted)
    assert not left.exists()


@pytest.mark.slow
def test_sigterm_saves_ends_and_resumes_to_the_same_weights(tmp_path: Path, uninterrupted: Path) -> None:
    process = start(tmp_path, "average=0.9", "pause=0.25")
    wait_for(lambda: any("loss" in r for r in read_metrics(tmp_path / "metrics.jsonl")))
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, errors
    assert "asked to stop: saved at step" in errors
    steps = [int(p.name.split("-")[1]) for p in (tmp_path / "checkpoints").glob("step-*")]
    assert 5 <= max(steps) < 30
    make_trainer(tmp_path, average=0.9).run(resume=True)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "listen"), [("rnnt", 0), ("rnnt", 4), ("aed", 4)])
def test_two_processes_make_the_loss_curve_of_one(tmp_path: Path, kind: str, listen: int) -> None:
    words = ["steps=12", "log_every=1", "save_every=12", "budget=60", f"kind={kind}", f"listen={listen}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}"}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # gloo, on any machine
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*launch, str(SCRIPT), str(tmp_path / "two"), *words],
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    settings = {"steps": 12, "log_every": 1, "save_every": 12}
    make_trainer(tmp_path / "one", kind, 60, listen=listen, accumulate=2, **settings).run()
    curves = []
    for name in ("one", "two"):
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        curves.append([r[key] for key in ("loss", "held_out_loss", "hours") for r in rows if key in r])
    assert len(curves[0]) > 24
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=2e-4, atol=1e-5)


def test_full_disk_leaves_the_last_checkpoint_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, steps=21)
    plain, full = os.fsync, []

    def fsync(handle: int) -> None:
        if trainer.progress.step >= 14:
            full.append(trainer.progress.step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(trainer, "_held_out_loss", lambda: 1 / trainer.progress.step)  # always the best so far
    with pytest.raises(CheckpointError, match=r"the disk is full\); the last good one, .*step-00000007, is untouched"):
        trainer.run()
    assert full[0] == 14 and full[-1] == 21  # it went on after the first, and could not after the last
    told = capsys.readouterr().err
    assert "training goes on and tries again" in told and "model.safetensors: No space left on device" in told
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    again = make_trainer(tmp_path, steps=21)
    assert again.run(resume=True).step == 21


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=12, save_every=2, evaluate_every=2, keep=2)
    trainer.progress.best, trainer.progress.best_step = -1.0, 4  # nothing can be better than this
    trainer.run()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000004", "step-00000010", "step-00000012"
    ]  # fmt: skip


def test_refuses_to_overwrite_a_run_or_to_resume_a_different_one(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=7).run()
    with pytest.raises(BadInputError, match="add --resume"):
        make_trainer(tmp_path, steps=7).run()
    with pytest.raises(BadInputError, match="has seed 0, this run 5"):
        make_trainer(tmp_path, steps=9, seed=5).run(resume=True)
    with pytest.raises(BadInputError, match=r"loop\.average"):
        make_trainer(tmp_path, steps=9, average=0.5).run(resume=True)
    with pytest.raises(CheckpointError, match="another network"):
        make_trainer(tmp_path, kind="aed", steps=9).run(resume=True)


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=7).run()
    file = tmp_path / "checkpoints" / "step-00000007" / "optimiser.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"optimiser\.safetensors has .* bytes, not"):
        make_trainer(tmp_path, steps=9).run(resume=True)
    state = json.loads((file.parent / "state.json").read_text())
    assert state["progress"]["step"] == 7 and state["progress"]["seed"] == 0


@pytest.mark.parametrize("part", ["weights", "average"])
def test_a_checkpoint_whose_weights_are_not_finite_is_refused(tmp_path: Path, part: str) -> None:
    make_trainer(tmp_path, steps=7, save_every=4, average=0.9).run()
    first, last = (tmp_path / "checkpoints" / f"step-{step:08d}" for step in (4, 7))
    for path, way_out in ((last, "remove it to resume from step-00000004"), (first, "start again in another folder")):
        file = path / f"{part}.safetensors"
        tensors = {name: value.clone() for name, value in read_tensors(file)[0].items()}
        tensors["output.bias"][2:4] = torch.nan
        write_tensors(file, tensors, {})
        told = rf"{path.name} cannot be resumed: in its {part} 2 of the 12 numbers of output\.bias .*{way_out}"
        with pytest.raises(CheckpointError, match=told):
            make_trainer(tmp_path, steps=9, average=0.9).run(resume=True)
        shutil.rmtree(path)


def test_a_best_that_was_not_finite_is_forgotten(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=7).run()
    file = tmp_path / "checkpoints" / "step-00000007" / "state.json"
    state = json.loads(file.read_text())
    state["progress"].update(best=math.nan, best_step=2, since_best=3)
    file.write_text(json.dumps(state))
    progress = make_trainer(tmp_path, steps=10, patience=9).run(resume=True)
    assert progress.best is not None and math.isfinite(progress.best) and progress.best_step == 10
