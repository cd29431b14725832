"""The tokenizer: ids laid out for the paper's models, text back unchanged, unknown text reported."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import check_same_vocabulary

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "house",
    "river",
    "mountain",
    "sees",
    "finds",
    "loves",
    "small",
    "green",
    "old",
    "never",
    "always",
    "under",
    "over",
    "and",
]
LINES = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 9)) for i in range(200)]


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(LINES, 80)


def test_id_zero_is_the_special_slot_and_the_labels_are_shared(tokenizer: SentencePieceTokenizer) -> None:
    transducer, attention, lm = (tokenizer.tokens_for(role) for role in ("transducer", "attention", "lm"))
    assert len(transducer) == len(attention) == len(tokenizer) == 80
    assert (transducer.blank, transducer.sos, transducer.eos, transducer.unk) == (0, None, None, 1)
    assert (attention.blank, attention.sos, attention.eos, attention.unk) == (None, 0, 0, 1)
    assert attention == lm == tokenizer.tokens
    assert transducer.pieces[0] == "<b>"
    assert transducer.pieces[1:] == attention.pieces[1:]
    assert tokenizer.for_role("transducer").tokens == transducer
    check_same_vocabulary(transducer, lm)
    with pytest.raises(BadInputError, match="role"):
        tokenizer.tokens_for("ctc")  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(WORDS), max_size=20))
def test_known_text_comes_back_unchanged(words: list[str]) -> None:
    tokenizer = _shared()
    text = " ".join(words)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 < i < len(tokenizer) for i in ids)
    assert tokenizer.decode([0, *ids, 0]) == text


@given(st.text(max_size=50))
def test_any_text_encodes_without_the_special_id(text: str) -> None:
    tokenizer = _shared()
    assert all(0 < i < len(tokenizer) for i in tokenizer.encode(text))


def test_unknown_characters_become_unk_and_are_listed(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode("the 猫 sees")
    assert ids.count(tokenizer.tokens.unk) == 1
    assert tokenizer.unknown("the 猫 sees") == ["猫"]
    assert tokenizer.unknown("the cat sees") == []
    assert tokenizer.decode(ids) == "the  ⁇  sees"
    assert tokenizer.encode("") == []


def test_special_names_in_text_are_plain_characters(tokenizer: SentencePieceTokenizer) -> None:
    assert 0 not in tokenizer.encode("<eos> the cat <eos>")


def test_training_does_not_depend_on_the_number_of_threads(tokenizer: SentencePieceTokenizer) -> None:
    assert SentencePieceTokenizer.train(LINES, 80, threads=2).tokens == tokenizer.tokens


def test_it_survives_files_json_and_worker_processes(tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "bpe.model")
    text = LINES[7]
    for other in (
        SentencePieceTokenizer.load(tmp_path / "bpe.model"),
        SentencePieceTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json()))),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert other.tokens == tokenizer.tokens
        assert other.encode(text) == tokenizer.encode(text)
    assert tokenizer.encode_many(LINES[:3]) == [tokenizer.encode(line) for line in LINES[:3]]
    assert [path.name for path in tmp_path.iterdir()] == ["bpe.model"]


def test_overlong_lines_are_used_too() -> None:
    line = " ".join(LINES)  # one line of more than 100,000 characters
    long = " ".join([line] * 20)
    assert len(long) > 100_000
    assert SentencePieceTokenizer.train([long], 80).unknown(LINES[0]) == []


def test_bad_input_is_a_named_error(tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no text"):
        SentencePieceTokenizer.train([" ", ""], 50)
    with pytest.raises(BadInputError, match="5 pieces out of 200 lines"):
        SentencePieceTokenizer.train(LINES, 5)
    with pytest.raises(BadInputError, match="100000 pieces"):
        SentencePieceTokenizer.train(LINES, 100_000)
    with pytest.raises(BadInputError, match="is not an id"):
        tokenizer.decode([80])
    with pytest.raises(CheckpointError, match="no sentencepiece model"):
        SentencePieceTokenizer(b"not a model")
    with pytest.raises(CheckpointError, match="no sentencepiece model"):
        SentencePieceTokenizer.load(tmp_path / "absent.model")
    with pytest.raises(CheckpointError, match="kind"):
        SentencePieceTokenizer.from_json({"kind": "words"})


def test_a_model_with_another_layout_is_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "other"
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_prefix=str(prefix),
        vocab_size=60,
        model_type="bpe",
        minloglevel=2,
    )
    with pytest.raises(CheckpointError, match="special slot"):
        SentencePieceTokenizer.load(prefix.with_suffix(".model"))


_CACHE: list[SentencePieceTokenizer] = []


def _shared() -> SentencePieceTokenizer:
    if not _CACHE:
        _CACHE.append(SentencePieceTokenizer.train(LINES, 80))
    return _CACHE[0]
