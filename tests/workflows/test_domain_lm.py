"""The LM of a domain: text in the model's style, refused where the model does not write such text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ilme.errors import BadInputError
from ilme.lm.mixing import Mixture, read_mixture, write_mixture
from ilme.lm.ngram import lm_tokens
from ilme.recogniser.loading import load_lm, load_model
from ilme.search.rescoring import sequence_scores
from ilme.workflows.domain_lm import LMOptions, keep_lm, train_domain_lm, unwritable
from tests.checkpoints import write_checkpoints

OPTIONS = LMOptions(style="keep", order=2, prune=(0,))


@pytest.fixture(scope="module")
def rnnt(tmp_path_factory):
    return load_model(write_checkpoints(tmp_path_factory.mktemp("domain-lm"), ["rnnt"]) / "rnnt")


@pytest.fixture
def tiny():
    pytest.importorskip("transformers")
    from tests.adapters.tiny import tiny_whisper

    return tiny_whisper()


def write(folder: Path, text: str) -> list[str]:
    (folder / "text.txt").write_text(text)
    return [str(folder / "text.txt")]


def test_what_is_written_is_what_was_trained(rnnt, tmp_path):
    said, file = [], tmp_path / "lm.safetensors"
    text = write(tmp_path, "the sea was calm\nthe whale swam\n" * 5)
    scorer, about = train_domain_lm(rnnt, text, [], file, replace(OPTIONS, order=3), said.append)
    assert scorer.tokens == lm_tokens(rnnt.tokens)
    assert about["lines"] == 10 and about["words"] == 35 and about["order"] == 3 and len(about["n-grams"]) == 3
    assert (
        about["tokens"] == sum(len(rnnt.tokenizer.encode(line)) for line in ("the sea was calm", "the whale swam")) * 5
    )
    ids = [rnnt.tokenizer.encode("the sea was calm")]
    loaded = load_lm(file, rnnt)
    assert torch.equal(sequence_scores(loaded, ids, finish=True), sequence_scores(scorer, ids, finish=True))
    assert "35 words in 10 lines" in said[0] and "3-gram" in said[1]


def test_a_text_in_another_script_is_refused(rnnt, tiny, tmp_path, monkeypatch):
    far = write(tmp_path, "мама мыла раму\n" * 10)
    with pytest.raises(BadInputError, match="50% of the text's tokens are unknown"):
        train_domain_lm(rnnt, far, [], tmp_path / "lm.safetensors", OPTIONS, print)
    monkeypatch.setattr(type(tiny.tokenizer), "encode", lambda self, line: [5] * len(line))
    monkeypatch.setattr("ilme.workflows.domain_lm.SPELLED", 50)
    with pytest.raises(BadInputError, match="language or script"):
        train_domain_lm(tiny, far, [], tmp_path / "lm.safetensors", OPTIONS, print)
    with pytest.raises(BadInputError, match="the text holds no sentence"):
        train_domain_lm(tiny, [], [], tmp_path / "lm.safetensors", OPTIONS, print)
    assert not (tmp_path / "lm.safetensors").exists()


def test_dev_sentences_are_left_out(rnnt, tmp_path):
    text, dev = write(tmp_path, "the captain saw the sea\na whale of a time\n" * 5), ["the captain saw the whale"]
    for overlap, excluded in ((4, 5), (0, 0)):
        options = replace(OPTIONS, overlap=overlap)
        _, about = train_domain_lm(rnnt, text, dev, tmp_path / "lm.safetensors", options, print)
        assert about["left out for overlap with dev"] == excluded


def test_marks_that_are_suppressed_are_not_in_the_text(tiny, rnnt):
    assert all(len(mark) == 1 and not mark.isalnum() for mark in unwritable(tiny))
    assert unwritable(rnnt) == []


def test_a_word_is_no_domain(rnnt, tmp_path):
    with pytest.raises(BadInputError, match="holds 3 words in 1 lines, and at least 20 words are needed"):
        train_domain_lm(rnnt, write(tmp_path, "the whale swam"), [], tmp_path / "lm.safetensors", OPTIONS, print)


def test_an_lm_that_was_given_by_name_is_copied_with_all_its_parts(tmp_path: Path) -> None:
    source, folder = tmp_path / "lms", tmp_path / "domain"
    source.mkdir()
    folder.mkdir()
    (source / "a.arpa").write_text("first")
    (source / "a.arpa.tokens.json").write_text("[]")
    (source / "b.safetensors").write_bytes(b"second")
    write_mixture(source / "mix.json", Mixture((source / "a.arpa", source / "b.safetensors"), (0.25, 0.75)))
    assert keep_lm("bundled/lm", folder) == "bundled/lm" and not list(folder.iterdir())
    assert keep_lm(str(source / "b.safetensors"), folder) == "lm.safetensors"
    assert keep_lm(str(source / "mix.json"), folder) == "lm.json"
    kept = read_mixture(folder / "lm.json")
    assert [f.name for f in kept.files] == ["lm-0.arpa", "lm-1.safetensors"] and kept.weights == (0.25, 0.75)
    assert all(f.parent.resolve() == folder.resolve() for f in kept.files)
    assert (folder / "lm-0.arpa.tokens.json").read_text() == "[]"


def test_a_causal_lm_is_copied_as_the_folder_that_it_is(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source, folder = tmp_path / "gpt", tmp_path / "domain"
    source.mkdir()
    folder.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    save_file({"weight": torch.zeros(2)}, source / "model.safetensors")
    assert keep_lm(str(source), folder) == "lm"
    assert sorted(p.name for p in (folder / "lm").iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
