"""Tokens, fusion and nests."""

from __future__ import annotations

import json

import pytest
import torch

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.fusion import FusionWeights, fuse
from ilme.runtime.state import cat, map_tensors, select
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens, check_same_vocabulary


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


def test_special_ids_must_be_ids():
    with pytest.raises(BadInputError, match="blank=7 is not an id"):
        Tokens(("a", "b"), blank=7)
    with pytest.raises(BadInputError, match="an id of its own"):
        Tokens(("a", "b"), blank=0, eos=0)


def test_tokens_survive_json():
    tokens = numbered_tokens(5, "transducer")
    assert Tokens.from_json(json.loads(json.dumps(tokens.to_json()))) == tokens


def test_fuse_is_the_formula():
    weights = FusionWeights(lm=0.3, subtracted=0.2, length=0.5)
    assert fuse(-2.0, -3.0, -5.0, 4.0, weights) == pytest.approx(-2 - 0.9 + 1.0 + 2.0)
    x = torch.randn(50)
    assert torch.equal(fuse(x, torch.full_like(x, torch.nan), torch.full_like(x, torch.nan), x, FusionWeights()), x)


def test_nests_keep_their_shape():
    state = {"a": (torch.arange(3), [torch.arange(3) * 2, None])}
    taken = select(state, torch.tensor([2, 0, 0]))
    assert taken["a"][0].tolist() == [2, 0, 0] and taken["a"][1][0].tolist() == [4, 0, 0] and taken["a"][1][1] is None
    assert cat([state, taken])["a"][0].tolist() == [0, 1, 2, 2, 0, 0]
    with pytest.raises(TypeError, match="not str"):
        map_tensors(lambda x: x, ["no tensor"])
