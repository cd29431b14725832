"""`ilme ngram train`: files that load, and what is said where there is none."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from ilme.cli import main
from ilme.data.tokenfile import TokenFile, write_tokens
from ilme.lm.ngram import load_ngram
from ilme.testing import numbered_tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = [min(2 + int(rng.expovariate(0.08)), 69) for _ in range(2400)]
    sentences = [words[at : at + 8] for at in range(0, len(words), 8)]
    write_tokens(tmp_path / "c.tok", sentences, numbered_tokens(70, "attention"))
    return tmp_path / "c.tok"


def test_arpa_and_the_fast_form_score_alike(tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ngram", "train", str(tokens), "--order", "3", "--prune", "0", "0", "1"]) == 0
    assert "order 3:" in capsys.readouterr().out
    fast = tokens.with_name("fast.safetensors")
    assert main(["ngram", "train", str(tokens), "--out", str(fast), "--order=3", "--prune=[0,0,1]"]) == 0
    a, b = load_ngram(tokens.with_suffix(".arpa")), load_ngram(fast)
    assert a.tokens == b.tokens == TokenFile(tokens).inventory
    (rows, state), (other, other_state) = a.start(2), b.start(2)
    for label in (2, 7, 3, 3):
        torch.testing.assert_close(rows, other, rtol=0, atol=1e-5)
        labels = torch.tensor([label, label + 1])
        (rows, state), (other, other_state) = a.score(labels, state), b.score(labels, other_state)


def test_a_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ngram", "train", str(tmp_path / "none.tok")]) == 1
    assert "no token file" in capsys.readouterr().err


def test_binary_needs_the_tool(
    tokens: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tokens.parent))
    assert main(["ngram", "train", str(tokens), "--binary"]) == 1
    assert "build_binary" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("build_binary") is None, reason="KenLM's build_binary is not on the PATH")
def test_binary_scores_like_the_arpa_file(tokens: Path) -> None:
    pytest.importorskip("kenlm", reason="the extra 'kenlm' is not installed")
    assert main(["ngram", "train", str(tokens), "--order", "3", "--binary"]) == 0
    ours, theirs = load_ngram(tokens.with_suffix(".arpa")), load_ngram(tokens.with_suffix(".arpa.bin"))
    labels = torch.tensor([2, 9, 17])
    a, b = (scorer.score(labels, scorer.start(3)[1])[0] for scorer in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
