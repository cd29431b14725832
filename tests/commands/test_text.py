"""`ilme text prepare`, `bpe` and `tokenize`, from raw text to a token file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ilme.cli import main
from ilme.data.tokenfile import TokenFile
from ilme.data.tokenizer import SentencePieceTokenizer

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat", "and", "ran", "away", "with", "it"]


def test_from_text_to_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(3)
    lines = [" ".join(rng.choices(WORDS, k=7)).capitalize() + "." for _ in range(500)]
    (tmp_path / "raw.txt").write_text("\n".join(lines))
    raw, out, pieces, tokens = (str(tmp_path / name) for name in ("raw.txt", "out", "bpe.model", "t.tok"))
    train = tmp_path / "out" / "train.txt"
    assert main(["text", "prepare", raw, out, "--options.hold_out", "0.1"]) == 0
    assert main(["text", "bpe", str(train), pieces, "--vocab_size", "40"]) == 0
    assert main(["text", "tokenize", str(train), pieces, tokens]) == 0
    assert "unknown ids" in capsys.readouterr().out
    file = TokenFile(tokens)
    tokenizer = SentencePieceTokenizer.from_json(file.tokenizer)
    assert [tokenizer.decode(ids.tolist()) for ids in file] == train.read_text().splitlines()
    assert file.inventory == tokenizer.tokens

    (tmp_path / "broken.txt").write_bytes(bytes(range(256)) * 40)
    broken = str(tmp_path / "broken.txt")
    assert main(["text", "tokenize", broken, pieces, str(tmp_path / "u.tok")]) == 1
    assert "binary" in capsys.readouterr().err
    assert main(["text", "prepare", broken, out, "--strict"]) == 1


def test_what_names_no_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "prepare", str(tmp_path / "none.txt"), str(tmp_path / "out")]) == 1
    assert "no text file matches" in capsys.readouterr().err
    assert main(["text", "prepare", "a.txt", "out", "--options.hold_out", "2"]) == 2
    assert "hold_out" in capsys.readouterr().err
