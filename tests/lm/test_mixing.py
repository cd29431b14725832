"""Mixture weights against brute force, and the mixture file."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from ilme.errors import BadInputError, CheckpointError
from ilme.lm.mixing import Mixture, best_weights, is_mixture, read_mixture, token_scores, write_mixture
from ilme.search.rescoring import sequence_scores
from ilme.testing import tiny

SENTENCES = [[2, 3, 4], [], [5, 5, 6, 7, 2], [3], [4, 4], [2, 7, 6]]


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
    """A mixture of two files that stand for LMs."""
    folder = tmp_path / "made"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.safetensors").write_text(name)
    write_mixture(folder / "mix.json", Mixture((folder / "a.safetensors", folder / "b.safetensors"), (0.25, 0.75)))
    return folder


def test_a_folder_of_lms_may_move(made):
    moved = made.parent / "moved"
    shutil.move(made, moved)
    mixture = read_mixture(moved / "mix.json")
    assert mixture.files[1].resolve() == (moved / "b.safetensors").resolve() and mixture.weights == (0.25, 0.75)


def test_an_lm_that_changed_or_went_is_an_error(made):
    shutil.copy(made / "a.safetensors", made / "b.safetensors")
    with pytest.raises(CheckpointError, match="has changed since"):
        read_mixture(made / "mix.json")
    (made / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not there"):
        read_mixture(made / "mix.json")


def test_json_is_taken_for_a_mixture_and_must_be_one(made):
    assert not is_mixture(made / "nothing.json") and not is_mixture(made / "a.safetensors")
    for content, message in (("[1]", "not a JSON object"), ("{", "not JSON"), ("{}", "no mixture of LMs")):
        (made / "other.json").write_text(content)
        assert is_mixture(made / "other.json")
        with pytest.raises(CheckpointError, match=message):
            read_mixture(made / "other.json")
    write_mixture(made / "mix.json", Mixture((made / "a.safetensors",), (1.0,)))
    assert is_mixture(made / "mix.json")
    about = json.loads((made / "mix.json").read_text())
    (made / "mix.json").write_text(json.dumps(about | {"lms": [{}]}))
    with pytest.raises(CheckpointError, match="damaged"):
        read_mixture(made / "mix.json")
    about |= {"version": 99}
    (made / "mix.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="version 99"):
        read_mixture(made / "mix.json")


def test_the_weights_of_a_file_sum_to_one(made):
    about = json.loads((made / "mix.json").read_text())
    for weight, message in ((0.7505, ""), (0.76, "sum to 1.0100, not to 1"), (0.5, "sum to 0.7500")):
        about["lms"][1]["weight"] = weight
        (made / "mix.json").write_text(json.dumps(about))
        if message:
            with pytest.raises(CheckpointError, match=message):
                read_mixture(made / "mix.json")
        else:
            assert read_mixture(made / "mix.json").weights == (0.25, weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "no name"), ("x\0", "no name"), ("x", "not there"), ("a" * 200 + "/" + "x" * 255, "not there"),
     ("x" * 256, "no name"), ("a/" + "é" * 128, "no name")],
)  # fmt: skip
def test_an_lm_has_a_name_that_a_file_can_have(made, name, message):
    about = json.loads((made / "mix.json").read_text())
    about["lms"][1]["lm"] = name
    (made / "mix.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=message):
        read_mixture(made / "mix.json")
