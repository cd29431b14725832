"""ONNX Runtime keeps no name of the machine, from which its reports would be told apart, and opens no connection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from onnx import TensorProto, helper
from ilme.runtime.onnx import import_onnxruntime

x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = import_onnxruntime("onnx").InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
import numpy
print(session.run(None, {"x": numpy.ones(1, numpy.float32)})[0][0])
"""


def test_nothing_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    given = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    home = given | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = subprocess.run([sys.executable, "-c", SCRIPT], env=home, capture_output=True, text=True, check=True)
    assert float(found.stdout) == -1 and not [path for path in tmp_path.rglob("*") if path.is_file()]
