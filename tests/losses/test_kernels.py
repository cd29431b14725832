"""The Triton kernels against the plain paths, interpreted and on a CUDA device; and compiled for one without any."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is for Linux on x86-64")


def told(module: str, *arguments: str, **environment: str) -> str:
    """What a program says; Triton reads its mode when imported, so each mode is a program of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
    given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", f"tests.{module}", *arguments]
    done = subprocess.run(command, env=given, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
@pytest.mark.slow
def test_interpreted_kernels_agree_with_the_plain_paths() -> None:
    assert "kernels agree" in told("losses.kernel_check", "cpu", TRITON_INTERPRET="1")


@pytest.mark.cuda
def test_kernels_on_a_gpu_agree_with_the_plain_paths() -> None:
    assert "kernels agree" in told("losses.kernel_check", "cuda", TRITON_INTERPRET="0")


@needs_triton
@pytest.mark.slow
def test_every_kernel_can_be_compiled_in_every_number_format(tmp_path: Path) -> None:
    """The interpreter forgives what the compiler does not: a variable whose number format changes in a loop."""
    said = told("losses.kernel_compile", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    named = {line.split()[0] for line in said.splitlines()}
    written = set()
    for path in (ROOT / "src" / "ilme").rglob("*.py"):
        text = path.read_text("utf-8")
        written |= {
            line.split("(")[0][4:] for line in text.splitlines() if line.startswith("def ") and "_kernel(" in line
        }
    assert len(written) >= 9 and named == written
