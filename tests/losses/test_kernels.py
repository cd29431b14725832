"""The Triton kernels against the plain paths: on a CUDA device, or interpreted where Triton is there without one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed; it comes with CUDA")
def test_kernels_agree_with_the_plain_paths() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "tests.losses.kernel_check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert "kernels agree" in done.stdout, done.stderr[-3000:]
