"""benchmarks/rnnt_loss.py measures the loss that training uses: its checks hold, and its plain way agrees."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ilme.losses.rnnt import Terms

SOURCE = Path(__file__).parents[2] / "benchmarks" / "rnnt_loss.py"


@pytest.fixture(scope="module")
def benchmark_file() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rnnt_loss_benchmark", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_checks_hold(benchmark_file: ModuleType) -> None:
    rows = benchmark_file.check("cpu")
    assert [(row["dtype"], row["peaked"]) for row in rows] == [
        (f"torch.{dtype}", peaked) for peaked in (False, True) for dtype in ("float32", "bfloat16")
    ]
    for row in rows:
        bound = 1e-4 if row["dtype"] == "torch.float32" else 0.05
        assert row["two_runs_bit_equal"] and all(error < bound for error in row["errors"].values()), row


def test_the_plain_way_and_ours_agree(benchmark_file: ModuleType) -> None:
    x = benchmark_file.make_inputs(2, 20, 4, 30, 16, "cpu", torch.float32, peaked=True)
    assert isinstance(x, Terms)
    ours, plain = benchmark_file.tiled(x, None, 0.0), benchmark_file.plain(x)
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=1e-5)
    found = torch.autograd.grad(ours, benchmark_file.leaves(x))
    torch.testing.assert_close(found, torch.autograd.grad(plain, benchmark_file.leaves(x)), rtol=1e-3, atol=1e-4)
