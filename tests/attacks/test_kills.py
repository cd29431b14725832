"""`kill -9` at any moment: the same command again ends as if nothing had happened, and nothing half-made is taken for
whole in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ilme.models.checkpoint import load_checkpoint
from ilme.recogniser.domain import Domain
from ilme.train.snapshots import Snapshots
from tests.attacks.cases import HALF_WRITTEN
from tests.attacks.jobs import JOBS, Moment, made, make_inputs, moments, preload, run, tear

MOMENTS = 50
SAMPLE = {("adapt again", 0), ("transcribe", 0), ("train lm", 0)}  # in `make test`


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: what was there before, what it made, in how many changes of files and seconds."""

    before: dict[str, Any]
    after: dict[str, Any]
    changes: int
    seconds: float


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preload()
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    known: dict[str, Whole] = {}

    def uninterrupted(name: str) -> Whole:
        if name not in known:
            job, folder = JOBS[name], tmp_path_factory.mktemp("whole")
            job.before(inputs, folder / "out")
            before, begun = made(folder / "out", job.ignored), time.monotonic()
            done = run(job.words(inputs, folder / "out"), folder)
            assert done.status == 0, done.err
            known[name] = Whole(before, made(folder / "out", job.ignored), int(done.out), time.monotonic() - begun)
        return known[name]

    return uninterrupted


# --- what may be there after a kill -----------------------------------------------------------------------------------


def replaced_whole(out: Path, job: str, whole: Whole) -> None:
    """A domain folder that loads is the one before or the one after, in every file."""
    if (out / "domain.json").exists():
        Domain.read(out).check_files(out)
        assert made(out, JOBS[job].ignored) in (whole.before, whole.after)
    else:
        assert not whole.before and not (out.exists() and list(out.iterdir()))


def files_whole(out: Path, job: str, whole: Whole) -> None:
    """Every file that is there is as it will be."""
    for name, content in made(out, (*JOBS[job].ignored, "*.partial", "*.lock")).items():
        assert content == whole.after[name], name


def checkpoints_whole(out: Path, job: str, whole: Whole) -> None:
    """A model that is there loads, and so does every checkpoint."""
    if (out / "model.safetensors").exists():
        load_checkpoint(out, job.split()[1])
    snapshots = Snapshots(out, 1)
    for checkpoint in snapshots.all():
        snapshots.load(checkpoint)


def stages_whole(out: Path, job: str, whole: Whole) -> None:
    """A stage that says it is done has all its files."""
    for mark in out.glob("*/done.json"):
        stage = mark.parent.name
        assert json.loads(mark.read_text())["stage"] == stage
        files = {name: made for name, made in whole.after.items() if name.startswith(f"{stage}/")}
        assert {f"{stage}/{name}": content for name, content in made(mark.parent, JOBS[job].ignored).items()} == files


CHECKS = {
    **dict.fromkeys(("adapt", "adapt again", "adapt networks"), replaced_whole),
    **dict.fromkeys(("transcribe", "tune", "evaluate"), files_whole),
    **dict.fromkeys(("train rnnt", "train lm"), checkpoints_whole),
    "study": stages_whole,
}


# --- the kills --------------------------------------------------------------------------------------------------------


def rows() -> list[Any]:
    return [
        pytest.param(name, k, id=f"{name}-{k}", marks=() if (name, k) in SAMPLE else pytest.mark.attacks)
        for name in JOBS
        for k in range(MOMENTS)
    ]


def needed(job: str) -> None:
    if job == "study":
        pytest.importorskip("espeakng_loader", reason="the study speaks: pip install 'ilme[synth]'")
    if job in ("study", "adapt networks") or job.startswith("train"):
        pytest.importorskip("lightning_fabric", reason="it trains: pip install 'ilme[train]'")


@pytest.mark.parametrize(("name", "k"), rows())
def test_killed_and_started_again(
    name: str, k: int, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    needed(name)
    job, wanted, out = JOBS[name], whole(name), tmp_path / "out"
    job.before(inputs, out)
    moment = list(moments(wanted.changes, wanted.seconds, MOMENTS, seed=len(name)))[k]
    for again in (moment, replace(moment, seconds=moment.seconds / 2, change=moment.change // 2)):
        killed = run(job.words(inputs, out), tmp_path, again)
        assert killed.status in (-9, 0), killed.err  # a run may be over before its time comes
        assert killed.status == -9 or not again.change or again is not moment
        CHECKS[name](out, name, wanted)
        if moment.torn:
            tear(out, moment.torn)
        if k % 5:  # every fifth is killed twice
            break
    done = run(job.words(inputs, out), tmp_path)
    assert done.status == 0, done.err
    CHECKS[name](out, name, wanted)
    assert made(out, job.ignored) == wanted.after
    left = [p for p in tmp_path.rglob("*") if p.suffix in (*HALF_WRITTEN, ".lock")]
    assert not left, left


@pytest.mark.attacks
@pytest.mark.parametrize("name", ["adapt again", "evaluate", "tune", "transcribe"])
def test_killed_before_every_change_one_after_the_other(
    name: str, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    """The same folder is killed again and again, each time one change later."""
    job, wanted, out = JOBS[name], whole(name), tmp_path / "out"
    job.before(inputs, out)
    for change in range(1, wanted.changes + 2):
        killed = run(job.words(inputs, out), tmp_path, Moment(change=change))
        CHECKS[name](out, name, wanted)
        if killed.status == 0:
            break
        assert killed.status == -9, killed.err
    assert run(job.words(inputs, out), tmp_path).status == 0
    assert made(out, job.ignored) == wanted.after
