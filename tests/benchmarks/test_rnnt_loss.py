"""benchmarks/rnnt_loss.py measures the loss that training uses: its checks hold, and its plain way agrees."""

from __future__ import annotations

import pytest
import torch

from benchmarks import rnnt_loss
from ilme.losses.rnnt import Terms


def test_its_checks_hold() -> None:
    rows = rnnt_loss.check("cpu")
    assert [(row["dtype"], row["peaked"]) for row in rows] == [
        (f"torch.{dtype}", peaked) for peaked in (False, True) for dtype in ("float32", "bfloat16")
    ]
    for row in rows:
        bound = 1e-4 if row["dtype"] == "torch.float32" else 0.05
        assert row["two_runs_bit_equal"] and all(error < bound for error in row["errors"].values()), row


def test_the_plain_way_and_ours_agree() -> None:
    x = rnnt_loss.make_inputs(2, 20, 4, 30, 16, "cpu", torch.float32, peaked=True)
    assert isinstance(x, Terms)
    ours, plain = rnnt_loss.tiled(x, None, 0.0), rnnt_loss.plain(x)
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=1e-5)
    found = torch.autograd.grad(ours, rnnt_loss.leaves(x))
    torch.testing.assert_close(found, torch.autograd.grad(plain, rnnt_loss.leaves(x)), rtol=1e-3, atol=1e-4)
