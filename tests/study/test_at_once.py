"""Stages at the same time: each begins when what it needs is done, and a failure begins nothing new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ilme.errors import IlmeError
from ilme.study.at_once import run_at_once
from ilme.study.runner import MARK, Stage, Study

WORK = """
import json, pathlib, sys, time
out, name, key, others = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split()
(out / f"{name}.begun").touch()
until = time.monotonic() + 20
while not all((out / f"{other}.begun").exists() for other in others):  # those beside it have begun as well
    if time.monotonic() > until:
        sys.exit(3)
    time.sleep(0.01)
if key == "fail":
    sys.exit(1)
(out / name).mkdir()
(out / name / "done.json").write_text(json.dumps({"stage": name, "key": key}))
"""


def study_of(out: Path) -> Study:
    """text; left and right need it; last needs both."""
    needs = {"text": (), "left": ("text",), "right": ("text",), "last": ("left", "right")}
    return Study([Stage(name, lambda study: None, before) for name, before in needs.items()], out)


class Starter:
    """Makes a stage as a process would; `failing` ends with an error."""

    def __init__(self, study: Study, beside: dict[str, str], failing: str = "") -> None:
        self.study, self.beside, self.failing = study, beside, failing
        self.begun: list[str] = []

    def __call__(self, name: str) -> subprocess.Popen[bytes]:
        missing = [n for n in self.study.stages[name].needs if not self.study.done(n)]
        assert not missing, f"{name} began before {missing}"
        self.begun.append(name)
        key = "fail" if name == self.failing else self.study.keys[name]
        words = [sys.executable, "-c", WORK, str(self.study.out), name, key, self.beside.get(name, "")]
        return subprocess.Popen(words)


def test_stages_that_need_not_wait_run_at_the_same_time(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    start = Starter(study, {"left": "right", "right": "left"})
    assert sorted(run_at_once(study, list(study.stages), start, 2)) == ["last", "left", "right", "text"]
    assert start.begun == ["text", "left", "right", "last"]
    assert run_at_once(study, list(study.stages), start, 2) == []


def test_a_failure_lets_the_others_end_and_begins_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    with pytest.raises(IlmeError, match="left did not come to an end"):
        run_at_once(study, list(study.stages), Starter(study, {"left": "right"}, failing="left"), 2)
    assert study.done("right") and not study.done("last")
    assert json.loads((tmp_path / "right" / MARK).read_text())["stage"] == "right"
