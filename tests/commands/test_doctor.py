"""`ilme doctor`: one screen, and an exit status that scripts can use."""

from __future__ import annotations

import json

import pytest

from ilme.cli import main
from ilme.workflows import doctor
from ilme.workflows.doctor import Finding

FINE = Finding("memory", "23 GiB")
NOTE = Finding("hub cache", "empty", "note", "name a folder")
WRONG = Finding("threads", "64 of 2", "problem", "export OMP_NUM_THREADS=2")


@pytest.mark.parametrize(("findings", "status"), [([FINE, NOTE], 0), ([FINE, WRONG], 1)])
def test_the_status_is_1_if_there_is_a_problem(findings, status, monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert main(["doctor", "--json"]) == status
    assert [entry["what"] for entry in json.loads(capsys.readouterr().out)] == [f.what for f in findings]
    assert main(["doctor"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "memory", "23", "GiB"]
    assert lines[1].startswith("PROBLEM" if status else "note") and findings[1].advice in lines[2]


def test_this_machine_fits_on_one_screen(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    main(["doctor"])
    assert 10 <= len(capsys.readouterr().out.splitlines()) <= 24
