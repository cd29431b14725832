"""`ilme demo` on a few of the bundled recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.cli import main
from ilme.workflows.bundle import FOLDER

bundled = pytest.mark.skipif(
    not (FOLDER / "bundle.json").is_file(), reason="no bundle in this checkout; build it with: make bundle"
)
QUICK = ["--model", "rnnt", "--method", "SF", "--beam", "2"]


@bundled
def test_decodes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *QUICK, "--utterances", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "decoding with rnnt SF" in out and "2 utterances in" in out
    assert (tmp_path / "report.html").is_file() and (tmp_path / "results.json").is_file()


@bundled
def test_transcribes_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, 8000).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", wave, 16000)
    assert main(["demo", *QUICK, "--wav", str(tmp_path / "a.wav"), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("rnnt SF")


def test_a_model_that_is_not_bundled_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "rnn"]) == 2
    assert "did you mean rnnt?" in capsys.readouterr().err
