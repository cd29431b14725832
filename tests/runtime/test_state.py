"""Nests of tensors."""

from __future__ import annotations

import pytest
import torch

from ilme.runtime.state import cat, map_tensors, select


def test_nests_keep_their_shape():
    state = {"a": (torch.arange(3), [torch.arange(3) * 2, None])}
    taken = select(state, torch.tensor([2, 0, 0]))
    assert taken["a"][0].tolist() == [2, 0, 0] and taken["a"][1][0].tolist() == [4, 0, 0] and taken["a"][1][1] is None
    assert cat([state, taken])["a"][0].tolist() == [0, 1, 2, 2, 0, 0]
    with pytest.raises(TypeError, match="not str"):
        map_tensors(lambda x: x, ["no tensor"])
