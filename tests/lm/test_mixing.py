"""Mixture weights against brute force, the mixture file, and `ilme lm mix`."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from ilme.cli import main
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError, CheckpointError
from ilme.lm.mixing import Mixture, best_weights, is_mixture, read_mixture, token_scores, write_mixture
from ilme.lm.mixture import MixtureScorer
from ilme.lm.perplexity import perplexity
from ilme.models.checkpoint import save_model
from ilme.models.lstm_lm import LSTMLM
from ilme.recogniser.loading import load_scorer
from ilme.search.rescoring import sequence_scores
from ilme.testing import tiny

SENTENCES = [[2, 3, 4], [], [5, 5, 6, 7, 2], [3], [4, 4], [2, 7, 6]]
TEXT = ["the cat sat on the mat", "a dog sat on the cat", "the mat is a mat", "cats and dogs sat", "on and on"] * 4
OTHER = ["a dog sat on a mat", "the dog and the cat is on the dog", "dogs and a cat", "mat and mat and cats"]


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_token_scores_add_up_to_those_of_sentences(pair, batch):
    for scorer in (*pair, tiny("lm")):
        found = token_scores(scorer, SENTENCES, batch)
        assert found.shape == (sum(len(y) + 1 for y in SENTENCES),)
        ends = torch.tensor([len(y) + 1 for y in SENTENCES]).cumsum(0)
        totals = torch.cat([torch.zeros(1, dtype=torch.float64), found.cumsum(0)[ends - 1]]).diff()
        torch.testing.assert_close(totals, sequence_scores(scorer, SENTENCES, finish=True), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_the_best_of_a_fine_grid(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(3, 200, generator=generator, dtype=torch.float64).log()
    weights, reached = best_weights(scores, tolerance=1e-12, steps=20_000)
    assert sum(weights) == pytest.approx(1)
    step = 0.02
    grid = [
        torch.tensor([a * step, b * step, 1 - (a + b) * step], dtype=torch.float64)
        for a in range(int(1 / step) + 1)
        for b in range(int(1 / step) + 1 - a)
    ]
    best = min(float((-(w.clamp(min=0) @ scores.exp()).log().mean()).exp()) for w in grid)
    assert reached <= best + 1e-9
    assert reached == pytest.approx(best, rel=1e-3)


def test_an_lm_that_is_better_everywhere_gets_all():
    scores = torch.stack([torch.full((50,), -1.0), torch.full((50,), -3.0)])
    weights, reached = best_weights(scores, tolerance=1e-12)
    assert weights[0] == pytest.approx(1, abs=1e-6)
    assert reached == pytest.approx(torch.e, rel=1e-6)


def test_what_one_lm_cannot_say_another_may():
    scores = torch.tensor([[-1.0, -torch.inf], [-2.0, -2.0]])
    weights, _ = best_weights(scores)
    assert 0 < weights[0] < 1
    with pytest.raises(BadInputError, match="1 tokens of the text are impossible"):
        best_weights(torch.tensor([[-1.0, -torch.inf], [-2.0, -torch.inf]]))
    with pytest.raises(BadInputError, match="LMs, tokens"):
        best_weights(torch.empty(2, 0))


@pytest.fixture
def made(tmp_path):
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


def _mix(folder, *names, tokenizer=()):
    files = [str(folder / name) for name in names]
    return main(["lm", "mix", *files, str(folder / "mix.json"), "--text", str(folder / "other.txt"), *tokenizer])


def test_the_command_writes_what_lm_takes(made, capsys):
    assert _mix(made, "lm.safetensors", "1.safetensors", "3.safetensors") == 0
    printed = capsys.readouterr().out
    mixture = read_mixture(made / "mix.json")
    assert [f.name for f in mixture.files] == ["lm.safetensors", "1.safetensors", "3.safetensors"]
    assert sum(mixture.weights) == pytest.approx(1)
    tokenizer = SentencePieceTokenizer.load(made / "bpe.model")
    scorer = load_scorer(str(made / "mix.json"), tokenizer.tokens)
    assert isinstance(scorer, MixtureScorer)
    measured = perplexity(scorer, OTHER, tokenizer)
    assert f"{measured.per_token:.2f}" in printed.splitlines()[-1]
    alone = [perplexity(load_scorer(str(f), tokenizer.tokens), OTHER, tokenizer).per_token for f in mixture.files]
    assert measured.per_token < min(alone)
    assert main(["perplexity", str(made / "mix.json"), str(made / "other.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity_per_token"] == pytest.approx(measured.per_token)


def test_a_folder_of_lms_may_move(made):
    assert _mix(made, "lm.safetensors", "3.safetensors") == 0
    moved = made.parent / "moved"
    shutil.move(made, moved)
    assert read_mixture(moved / "mix.json").files[1].resolve() == (moved / "3.safetensors").resolve()


def test_an_lm_that_changed_or_went_is_an_error(made):
    assert _mix(made, "lm.safetensors", "3.safetensors") == 0
    shutil.copy(made / "1.safetensors", made / "3.safetensors")
    with pytest.raises(CheckpointError, match="has changed since"):
        read_mixture(made / "mix.json")
    (made / "3.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not there"):
        read_mixture(made / "mix.json")


def test_only_mixture_files_are_taken_for_one(made):
    assert not is_mixture(made / "nothing.json")
    (made / "other.json").write_text("[1]")
    assert not is_mixture(made / "other.json")
    (made / "broken.json").write_text("{")
    assert not is_mixture(made / "broken.json")
    write_mixture(made / "mix.json", Mixture((made / "1.safetensors",), (1.0,)))
    assert is_mixture(made / "mix.json")
    about = json.loads((made / "mix.json").read_text())
    (made / "mix.json").write_text(json.dumps(about | {"lms": [{}]}))
    with pytest.raises(CheckpointError, match="damaged"):
        read_mixture(made / "mix.json")
    about |= {"version": 99}
    (made / "mix.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="version 99"):
        read_mixture(made / "mix.json")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lm.safetensors"], "at least two LMs"),
        (["lm.safetensors", "gone.arpa"], "no LM"),
        (["1.safetensors", "3.safetensors"], "--tokenizer"),
    ],
)
def test_what_is_missing_is_said(made, capsys, names, said):
    assert _mix(made, *names) == 1
    assert said in capsys.readouterr().err


def test_n_grams_alone_need_the_name_of_a_tokenizer(made, capsys):
    for name in ("bpe.model", "lm.safetensors"):
        assert _mix(made, "1.safetensors", "3.safetensors", tokenizer=("--tokenizer", str(made / name))) == 0
    assert main(["perplexity", str(made / "3.safetensors"), str(made / "text.txt")]) == 1
    assert "--tokenizer" in capsys.readouterr().err
    given = ["--tokenizer", str(made / "bpe.model")]
    assert main(["perplexity", str(made / "3.safetensors"), str(made / "text.txt"), *given]) == 0
    assert main(["perplexity", str(made / "bare.safetensors"), str(made / "text.txt"), *given]) == 0
    assert main(["text", "tokenize", str(made / "text.txt"), str(made / "bare.safetensors"), str(made / "x")]) == 1
    assert "no tokenizer" in capsys.readouterr().err
