"""`ilme export onnx`: the folder recognises what the checkpoint does, and is adapted as any other model."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from ilme.cli import main
from tests.checkpoints import TEXTS, write_checkpoints, write_wave


def test_the_folder_is_a_model_for_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = write_checkpoints(tmp_path, ["rnnt"]) / "rnnt", tmp_path / "onnx"
    assert main(["export", "onnx", str(checkpoint), str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    files = {"encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt", "bpe.model"}
    assert {p.name for p in out.iterdir()} == files
    wave = str(write_wave(tmp_path / "a.wav", 1.5))
    texts = []
    for model in (checkpoint, out):
        assert main(["transcribe", wave, "--model", str(model)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].strip()
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    text, domain = str(tmp_path / "text.txt"), str(tmp_path / "domain")
    assert main(["adapt", "--model", str(out), "--text", text, "--out", domain]) == 0
    assert main(["transcribe", wave, "--domain", domain]) == 0


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "onnx", "bundled/aed", str(tmp_path / "out")]) == 1
    assert "only an RNN-T" in capsys.readouterr().err
    assert main(["export", "onnx"]) == 2
