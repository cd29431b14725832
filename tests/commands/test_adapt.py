"""`ilme adapt` and `ilme transcribe --domain`, one after the other, with a tiny RNN-T."""

from __future__ import annotations

import pytest

from ilme.cli import main
from ilme.recogniser.domain import load_domain
from tests.commands.conftest import Decoded

FAST = ["--options.order", "2", "--options.prune", "0", "--options.beam", "2", "--options.calibration", "2",
        "--options.max_decodes", "2", "--options.normaliser", "none", "--options.internal", "removed"]  # fmt: skip


def test_a_domain_from_text_and_dev(decoded: Decoded, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the sea was calm\nthe whale swam\n" * 5)
    out = tmp_path / "domain"
    named = ["--text", str(tmp_path / "text.txt"), "--dev", str(decoded.dev), "--limit", "3", "--out", str(out)]
    assert main(["adapt", "--model", str(decoded.folder / "rnnt"), *named, *FAST]) == 0
    printed = capsys.readouterr().out
    assert "dev without LM" in printed and "on 3 utterances" in printed and "| before |" in printed
    assert printed.endswith((out / "card.md").read_text() + "\n")
    wave = decoded.folder / "test0.wav"
    assert main(["transcribe", "--domain", str(out), str(wave)]) == 0
    assert capsys.readouterr().out == load_domain(out).transcribe(wave).text + "\n"


def test_mistakes_are_explained(decoded: Decoded, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the sea was calm\n" * 9)
    model, text = ["--model", str(decoded.folder / "rnnt")], ["--text", str(tmp_path / "text.txt")]
    for arguments, status, message in [
        ([*model, *text], 2, "--out"),
        (["--out", str(tmp_path / "x"), *text], 2, "--model"),
        ([*model, "--out", str(tmp_path / "x")], 2, "--text"),
        ([*model, *text, "--out", str(tmp_path)], 1, "holds text.txt, which no domain folder has"),
        ([*model, *text, "--out", str(tmp_path / "x"), "--language", "de"], 1, "takes no language"),
        ([*model, "--out", str(tmp_path / "x"), "--text", str(tmp_path / "none.txt")], 1, "none.txt"),
    ]:
        assert main(["adapt", *arguments]) == status
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
