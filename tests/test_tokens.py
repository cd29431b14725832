"""Tokens: a label has one id everywhere, special ids are ids."""

from __future__ import annotations

import json

import pytest

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens, check_same_vocabulary, spelling


def test_a_label_has_one_id_everywhere():
    check_same_vocabulary(numbered_tokens(9, "transducer"), numbered_tokens(9, "attention"))
    with pytest.raises(
        VocabularyMismatchError, match=r"model has 9 tokens and the LM 8; .* id 8: '▁8' against nothing"
    ):
        check_same_vocabulary(numbered_tokens(9, "transducer"), numbered_tokens(8, "attention"))
    other = Tokens(("<eos>", "<unk>", "▁2", "▁x", "▁4"), eos=0, unk=1)
    with pytest.raises(
        VocabularyMismatchError, match=r"5 tokens and the LM 5; they first differ at id 3: '▁3' against '▁x'"
    ):
        check_same_vocabulary(numbered_tokens(5, "transducer"), other)


def test_what_stands_for_no_text_may_have_other_names():
    """tiny.en's own units, in the package's file of ranks and in the hub's tokenizer."""
    ours = Tokens(("Ġthe", "Ġdog", "<|endoftext|>", "<|he|>", "<|nospeech|>", "<|0.00|>"), eos=2)
    check_same_vocabulary(ours, Tokens(("Ġthe", "Ġdog", "<|endoftext|>", "<|iw|>", "<|nocaptions|>", "<id 5>"), eos=2))
    for pieces, at in {("Ġthe", "Ġcat", *ours.pieces[2:]): 1, (*ours.pieces[:5], "Ġa"): 5, ours.pieces[:5]: 5}.items():
        with pytest.raises(VocabularyMismatchError, match=f"first differ at id {at}:"):
            check_same_vocabulary(ours, Tokens(pieces, eos=2))


def test_special_ids_must_be_ids():
    with pytest.raises(BadInputError, match="blank=7 is not an id"):
        Tokens(("a", "b"), blank=7)
    with pytest.raises(BadInputError, match="an id of its own"):
        Tokens(("a", "b"), blank=0, eos=0)


def test_tokens_survive_json():
    tokens = numbered_tokens(5, "transducer")
    assert Tokens.from_json(json.loads(json.dumps(tokens.to_json()))) == tokens


def test_the_text_of_each_piece():
    sentencepiece = Tokens(("<eos>", "<unk>", "▁the", "s", "▁", "<0xE4>", "<id 6>"), eos=0, unk=1)
    assert spelling(sentencepiece) == [None, "\ufffd", " the", "s", " ", "\ufffd", None]
    bytes_ = Tokens(("Ġthe", "Ã©", "Ã", "<|endoftext|>", "<"), eos=3)
    assert spelling(bytes_) == [" the", "é", "\ufffd", None, "<"]
    assert spelling(Tokens(("<pad>", "|", "A"), blank=0)) == [None, " ", "A"]
