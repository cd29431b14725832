"""Signals, and two runs at once: everything ends in one line and the right status, and the next run goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.cases import HALF_WRITTEN, TRACEBACK
from tests.attacks.jobs import JOBS, OTHERS, made, make_inputs, preload, run, signal_at, start

ALL = JOBS | OTHERS
SENT = {signal.SIGTERM: (143, ""), signal.SIGINT: (130, "interrupted"), signal.SIGHUP: (129, "")}
STOPPED = ("adapt", "adapt again", "transcribe", "tune", "evaluate", "train rnnt", "train lm", "text prepare",
           "data import", "data synth", "ngram train", "export onnx", "report")  # fmt: skip
SAMPLE = {("adapt", 143), ("transcribe", 130), ("train lm", 143), ("evaluate", 129)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preload()
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], int]]:
    """What an uninterrupted run makes, and in how many changes of files."""
    known: dict[str, tuple[dict[str, Any], int]] = {}

    def uninterrupted(name: str) -> tuple[dict[str, Any], int]:
        if name not in known:
            folder = tmp_path_factory.mktemp("whole")
            ALL[name].before(inputs, folder / "out")
            done = run(ALL[name].words(inputs, folder / "out"), folder)
            assert done.status == 0, done.err
            known[name] = made(folder / "out", ALL[name].ignored), int(done.out)
        return known[name]

    return uninterrupted


def needed(name: str) -> None:
    if name == "data synth":
        pytest.importorskip("espeakng_loader", reason="it speaks: pip install 'ilme[synth]'")
    if name.startswith("train"):
        pytest.importorskip("lightning_fabric", reason="it trains: pip install 'ilme[train]'")
    if name == "export onnx":
        pytest.importorskip("onnx", reason="it writes ONNX: pip install 'ilme[onnx]'")


def rows() -> list[Any]:
    return [
        pytest.param(name, number, k, id=f"{name}-{number.name}-{k}",
                     marks=() if (name, SENT[number][0]) in SAMPLE and k == 1 else pytest.mark.attacks)
        for name in STOPPED for number in SENT for k in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "k"), rows())
def test_a_signal(
    name: str, number: signal.Signals, k: int, inputs: Path, tmp_path: Path,
    whole: Callable[[str], tuple[dict[str, Any], int]],
) -> None:  # fmt: skip
    needed(name)
    job, out, (wanted, changes) = ALL[name], tmp_path / "out", whole(name)
    job.before(inputs, out)
    before = made(out)
    change = 1 + (changes - 1) * k // 4
    stopped = run(job.words(inputs, out), tmp_path, inside=signal_at(tmp_path, change, number))
    status, told = SENT[number]
    assert stopped.status == status, f"{stopped.status}: {stopped.err}"
    assert TRACEBACK not in stopped.err and told in stopped.err, stopped.err
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (*HALF_WRITTEN, ".lock")]
    assert not name.startswith("adapt") or made(out) in (before, wanted)
    again = run(job.words(inputs, out), tmp_path)
    assert again.status == 0, again.err
    assert made(out, job.ignored) == wanted


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("adapt again", "transcribe", "evaluate") else pytest.mark.attacks)
     for n in ("adapt", "adapt again", "transcribe", "tune", "evaluate", "train lm", "train rnnt", "study")],
)  # fmt: skip
@pytest.mark.parametrize(
    "share", [0.2, pytest.param(0.5, marks=pytest.mark.attacks), pytest.param(0.8, marks=pytest.mark.attacks)]
)
def test_two_runs_at_once(
    share: float, name: str, inputs: Path, tmp_path: Path, whole: Callable[[str], tuple[dict[str, Any], int]]
) -> None:
    """The second is refused with a line that says why, and the first ends as if there had been none."""
    needed(name)
    if name == "study":
        pytest.importorskip("espeakng_loader", reason="the study speaks: pip install 'ilme[synth]'")
    job, out, (wanted, changes) = ALL[name], tmp_path / "out", whole(name)
    job.before(inputs, out)
    first = start(
        job.words(inputs, out), tmp_path, inside=signal_at(tmp_path, max(6, int(share * changes)), signal.SIGSTOP)
    )
    assert first.wait_for_stop()
    second = run(job.words(inputs, out), tmp_path)
    first.go_on()
    done = first.wait()
    assert second.status == 1 and "another run is writing" in second.err and TRACEBACK not in second.err, second.err
    assert "wait until it has ended, or choose another place with --out" in second.err
    assert done.status == 0, done.err
    assert made(out, job.ignored) == wanted
