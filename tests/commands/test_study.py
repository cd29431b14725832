"""`ilme study` and its commands on the first stage of the tiny study; tests/study runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.cli import main

ROOT = Path(__file__).parents[2]
PLAN = str(ROOT / "configs" / "study" / "tiny.yaml")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_stage_runs_once_and_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "study")]
    assert main(["study", PLAN, *out, "--until", "text"]) == 0
    capsys.readouterr()
    assert main(["study", "status", PLAN, *out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "done  text" and not any(line.startswith("done") for line in lines[1:])
    assert main(["study", "pack", PLAN, str(tmp_path / "packed"), *out]) == 1
    assert "nothing to pack" in capsys.readouterr().err


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, status, said in (
        (["study", "none.yaml"], 1, "there is no study none.yaml"),
        (["study", PLAN, "--only", "tekst"], 1, "no stage 'tekst'"),
        (["study", PLAN, "--change", "speech"], 2, "expected NAME:VALUE"),
        (["study", "gather", PLAN, str(tmp_path / "g")], 1, "nothing to gather"),
        (["study", "unpack", str(tmp_path / "none"), str(tmp_path / "out")], 1, "none"),
        (["study", "bundle", str(tmp_path / "none")], 1, "none"),
    ):
        assert main(words) == status, words
        assert said in capsys.readouterr().err
