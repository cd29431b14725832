"""A padded LSTM gives the plain one's numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ilme.models.encoder import both_ways
from ilme.train.alignment import align_lstms, padded_lstm


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("width", "hidden"), [(5, 11), (8, 3), (6, 16)])
def test_equals_the_plain_lstm(bidirectional: bool, packed: bool, width: int, hidden: int) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=bidirectional).double()
    x = torch.randn(3, 7, width, dtype=torch.float64, requires_grad=True)
    given = pack_padded_sequence(x, torch.tensor([4, 7, 2]), batch_first=True, enforce_sorted=False) if packed else x
    results = []
    for out, (h, c) in (lstm(given), padded_lstm(lstm, given)):
        y = pad_packed_sequence(out, batch_first=True)[0] if packed else out
        weights = torch.linspace(0, 1, y.numel(), dtype=torch.float64).view_as(y)
        grads = torch.autograd.grad((y * weights).sum() + h.sum() + c.sum(), [x, *lstm.parameters()], retain_graph=True)
        results.append([y, h, c, *grads])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(("width", "hidden"), [(5, 11), (16, 8)])
def test_both_ways_equal_a_packed_sequence(width: int, hidden: int) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True).double()
    x = torch.randn(3, 7, width, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 7, 1])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    plain = pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]
    results = []
    for y in (plain, both_ways(lstm, x, lengths)):
        weights = torch.linspace(0, 1, y.numel(), dtype=torch.float64).view_as(y)
        results.append([y, *torch.autograd.grad((y * weights).sum(), [x, *lstm.parameters()])])
    torch.testing.assert_close(results[1], results[0])


def test_only_odd_single_layers_are_changed() -> None:
    model = nn.ModuleList([nn.LSTM(8, 16, batch_first=True), nn.LSTM(8, 12, batch_first=True), nn.LSTM(8, 12, 2)])
    x = torch.randn(2, 5, 8)
    before = model[1](x)[0]
    assert align_lstms(model) == 1
    torch.testing.assert_close(model[1](x)[0], before)
    assert set(model.state_dict()) == set(
        nn.ModuleList([nn.LSTM(8, 16), nn.LSTM(8, 12), nn.LSTM(8, 12, 2)]).state_dict()
    )
