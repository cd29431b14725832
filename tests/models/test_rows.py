"""Equal rows are found, and what is computed once for them is what would be computed for each."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import EncoderConfig
from ilme.models.lstm import LSTMStack
from ilme.models.packed import pack
from ilme.models.rows import FEW, distinct_rows, group_equal_rows
from ilme.testing import numbered_tokens


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 12), st.booleans(), st.integers(0, 1000))
def test_distinct_rows(n, width, families, signs, seed):
    generator = torch.Generator().manual_seed(seed)
    of = torch.randint(families, (n,), generator=generator)
    table = torch.randn(families, width, generator=generator)
    rows = (table.sign() if signs else table)[of]
    found = distinct_rows(rows)
    if found is None:
        assert n < FEW or len(rows.unique(dim=0)) == n or signs  # of few signs, two different rows may look alike
        return
    first, place = found
    assert torch.equal(rows[first][place], rows)
    assert len(first) < n and len(rows[first].unique(dim=0)) == len(first)


def test_rows_are_equal_only_where_every_part_is():
    one = torch.zeros(10, 3)
    assert len(distinct_rows(one)[0]) == 1
    other = torch.arange(10.0)[:, None]
    assert distinct_rows(one, other) is None
    first, place = distinct_rows(one, other // 5)
    assert torch.equal((other // 5)[first][place], other // 5) and len(first) == 2


@pytest.mark.parametrize("parents", [[0, 1, 0, 2, 2, 0, 3, 1, 3], list(range(9)), [0, 0, 1]])
def test_families_hold_every_row_once_beside_its_equals(parents):
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))[parents]
    distinct, members = group_equal_rows(rows)
    assert sorted(i for family in members for i in family) == list(range(len(rows)))
    for row, family in zip(distinct, members, strict=True):
        assert torch.equal(rows[family], row.expand(len(family), -1))
    assert len(members) == (len(set(parents)) if len(rows) >= FEW else len(rows))


@pytest.mark.parametrize("carries", [False, True])
@torch.no_grad()
def test_siblings_step_as_if_alone(carries):
    torch.manual_seed(0)
    stack = LSTMStack(10, 16, 2).eval()
    packed = pack(copy.deepcopy(stack))
    parents = torch.tensor([0, 0, 1, 2, 2, 2, 3, 0, 1, 1, 3, 2])
    state = tuple(torch.randn(4, 2, 16)[parents] for _ in range(2))
    x = torch.randn(5, 10)[torch.arange(12) % 5]
    carried = torch.randn(4, 10)[parents] if carries else None
    expected, (h, c) = stack.step(x if carried is None else x + carried, state)
    found, (found_h, found_c) = packed.step(x, state, carried)
    for ours, theirs in ((found, expected), (found_h, h), (found_c, c)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    plain, _ = stack.step(x, state, carried)
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize("filters", [0, 3])
def test_siblings_attend_as_if_alone(filters):
    torch.manual_seed(1)
    config = AEDConfig(
        encoder=EncoderConfig(features=5, hidden=6, layers=1, bidirectional=True, projection=8),
        decoder_hidden=12, decoder_layers=1, attention=7, filters=filters, width=3,
    )  # fmt: skip
    attend = AED(config, numbered_tokens(9, "attention")).eval().attend
    B, K, T = 2, 10, 6
    values = torch.randn(B, T, 8)
    padding = torch.zeros(B, T)
    padding[1, 4:] = -torch.inf
    memory = (values, attend.key(values), padding)
    parents = torch.cat([torch.arange(K) // 3, 4 + torch.arange(K) // 4])
    previous = torch.randn(8, T).softmax(-1)[parents]
    h = torch.randn(B * K, 12)
    with torch.no_grad():
        found = attend(previous, memory, h)
    with torch.enable_grad():  # the plain formula, without blocks
        expected = attend(previous, memory, h)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
