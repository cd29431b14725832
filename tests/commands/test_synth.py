"""`ilme data synth`: a text spoken with the options given."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from ilme.cli import main

pytest.importorskip("espeakng_loader", reason="the extra 'synth' is not installed")


def test_speaks_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "t.txt", str(tmp_path / "out")
    text.write_text("the cat sat on the mat\nIn 1984 it cost $5.\nhello there my friend\n")
    options = ["--options.limit", "2", "--options.format", "wav", "--options.sample_rate=8000"]
    assert main(["data", "synth", str(text), out, *options]) == 0
    assert "2 utterances" in capsys.readouterr().out
    assert soundfile.info(tmp_path / "out" / "audio" / "000000" / "000000000.wav").samplerate == 8000


def test_what_it_cannot_speak_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    assert main(["data", "synth", str(tmp_path / "empty.txt"), str(tmp_path / "out")]) == 1
    assert "nothing to speak" in capsys.readouterr().err
    assert main(["data", "synth", "t.txt", "out", "--options.format", "mp3"]) == 2
    assert "'mp3' is not one of flac, wav" in capsys.readouterr().err
