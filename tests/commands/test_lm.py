"""`ilme lm mix`: the file it writes is what --lm takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ilme.cli import main
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.lm.mixing import read_mixture
from ilme.lm.mixture import MixtureScorer
from ilme.lm.perplexity import perplexity
from ilme.models.checkpoint import save_model
from ilme.models.lstm_lm import LSTMLM
from ilme.recogniser.loading import load_lm
from ilme.testing import tiny

TEXT = ["the cat sat on the mat", "a dog sat on the cat", "the mat is a mat", "cats and dogs sat", "on and on"] * 4
OTHER = ["a dog sat on a mat", "the dog and the cat is on the dog", "dogs and a cat", "mat and mat and cats"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with a tokenizer, an LSTM-LM, two n-grams of a text, and another text, all of one inventory."""
    (tmp_path / "other.txt").write_text("\n".join(OTHER))
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    tokenizer = SentencePieceTokenizer.train(TEXT, 40)
    tokenizer.save(tmp_path / "bpe.model")
    model = LSTMLM(tiny("lm").config, tokenizer.tokens).eval()
    save_model(tmp_path / "lm.safetensors", model, tokenizer)
    save_model(tmp_path / "bare.safetensors", model)
    text, tok = str(tmp_path / "text.txt"), str(tmp_path / "text.tok")
    assert main(["text", "tokenize", text, str(tmp_path / "lm.safetensors"), tok]) == 0
    for order in ("1", "3"):
        out = str(tmp_path / f"{order}.safetensors")
        assert main(["ngram", "train", tok, "--order", order, "--out", out]) == 0
    return tmp_path


def mix(folder: Path, *names: str, tokenizer: str = "") -> int:
    files = [str(folder / name) for name in names]
    given = ["--tokenizer", str(folder / tokenizer)] if tokenizer else []
    return main(["lm", "mix", *files, str(folder / "mix.json"), "--text", str(folder / "other.txt"), *given])


def test_it_writes_what_lm_takes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mix(made, "lm.safetensors", "1.safetensors", "3.safetensors") == 0
    printed = capsys.readouterr().out
    mixture = read_mixture(made / "mix.json")
    assert [f.name for f in mixture.files] == ["lm.safetensors", "1.safetensors", "3.safetensors"]
    assert sum(mixture.weights) == pytest.approx(1)
    tokenizer = SentencePieceTokenizer.load(made / "bpe.model")
    scorer = load_lm(str(made / "mix.json"), tokenizer.tokens)
    assert isinstance(scorer, MixtureScorer)
    measured = perplexity(scorer, OTHER, tokenizer)
    assert f"{measured.per_token:.2f}" in printed.splitlines()[-1]
    alone = [perplexity(load_lm(str(f), tokenizer.tokens), OTHER, tokenizer).per_token for f in mixture.files]
    assert measured.per_token < min(alone)
    assert main(["perplexity", str(made / "mix.json"), str(made / "other.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity_per_token"] == pytest.approx(measured.per_token)


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["lm.safetensors"], 2, "at least two LMs"),
        (["lm.safetensors", "gone.arpa"], 1, "no LM"),
        (["1.safetensors", "3.safetensors"], 1, "--tokenizer"),
    ],
)
def test_what_is_missing_is_said(
    made: Path, capsys: pytest.CaptureFixture[str], names: list[str], status: int, said: str
) -> None:
    assert mix(made, *names) == status
    assert said in capsys.readouterr().err


def test_text_and_a_json_file_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm", "mix", "a.arpa", "b.arpa", "mix.json"]) == 2
    assert "give it with --text" in capsys.readouterr().err
    assert main(["lm", "mix", "a.arpa", "b.arpa", "--text", "dev.txt"]) == 2
    assert "a mixture is a .json file" in capsys.readouterr().err


def test_n_grams_alone_need_the_name_of_a_tokenizer(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bpe.model", "lm.safetensors"):
        assert mix(made, "1.safetensors", "3.safetensors", tokenizer=name) == 0
    assert main(["perplexity", str(made / "3.safetensors"), str(made / "text.txt")]) == 1
    assert "--tokenizer" in capsys.readouterr().err
    given = ["--tokenizer", str(made / "bpe.model")]
    assert main(["perplexity", str(made / "3.safetensors"), str(made / "text.txt"), *given]) == 0
    assert main(["perplexity", str(made / "bare.safetensors"), str(made / "text.txt"), *given]) == 0
    assert main(["text", "tokenize", str(made / "text.txt"), str(made / "bare.safetensors"), str(made / "x")]) == 1
    assert "no tokenizer" in capsys.readouterr().err
