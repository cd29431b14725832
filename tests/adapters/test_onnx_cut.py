"""Cutting a joint network: the three parts make the whole again, and graphs that do not add are refused."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx

from ilme.adapters.onnx_cut import cut_joint
from ilme.adapters.onnx_session import OnnxGraph, read_graph
from ilme.adapters.onnx_writer import Graph
from ilme.errors import CheckpointError


def joint(meet="Add", twice=False):
    """logits = relu(W_e e + b_e ∘ W_p p), and a second output that is of the labels alone."""
    torch.manual_seed(0)
    graph = Graph()
    f = graph.add("Add", graph.add("MatMul", "encoder_outputs", torch.randn(4, 3)), torch.randn(3))
    g = graph.add("MatMul", "said", torch.randn(5, 3))
    both = graph.add(meet, f, g)
    if twice:
        both = graph.add("Sub", both, graph.add("Mul", f, g))
    return graph.finish(
        inputs={"encoder_outputs": ["N", 4], "said": ["N", 5]},
        outputs={"outputs": (graph.add("Relu", both), ["N", 3]), "state": (graph.add("Neg", g), ["N", 3])},
        metadata={},
    )


def in_a_branch():
    """A joint network whose encoder term is read inside a branch alone."""
    info, floats = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inner = onnx.helper.make_node("Add", ["f", "said"], ["taken"])
    branch = onnx.helper.make_graph([inner], "branch", [], [info("taken", floats, ["N", 3])])
    nodes = [
        onnx.helper.make_node("Neg", ["encoder_outputs"], ["f"]),
        onnx.helper.make_node("If", ["choose"], ["outputs"], then_branch=branch, else_branch=branch),
    ]
    inputs = [info("encoder_outputs", floats, ["N", 3]), info("said", floats, ["N", 3])]
    chosen = info("choose", onnx.TensorProto.BOOL, [1])
    graph = onnx.helper.make_graph(nodes, "joint", [*inputs, chosen], [info("outputs", floats, ["N", 3])])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def run(content, given, path):
    graph = OnnxGraph(path, 1, content)
    return graph.run(given, list(graph.outputs))


def test_the_parts_make_the_whole(tmp_path):
    path = tmp_path / "joint.onnx"
    onnx.save(joint(), path)
    parts = cut_joint(read_graph(path), "encoder_outputs")
    e, p = torch.randn(2, 4), torch.randn(2, 5)
    whole, state = run(None, {"encoder_outputs": e, "said": p}, path)
    (f,) = run(parts.heard, {"encoder_outputs": e}, path)
    g, alone = run(parts.said, {"said": p}, path)
    names = list(OnnxGraph(path, 1, parts.together).inputs)
    (logits,) = run(parts.together, dict(zip(names, (f, g), strict=True)), path)
    torch.testing.assert_close(logits, whole)
    torch.testing.assert_close(alone, state)
    (unheard,) = run(parts.together, dict(zip(names, (torch.zeros_like(f), g), strict=True)), path)
    torch.testing.assert_close(unheard, g.relu())


@pytest.mark.parametrize(("form", "found"), [({"meet": "Mul"}, "Mul"), ({"twice": True}, "Add, Mul")])
def test_what_does_not_add_is_refused(form, found):
    with pytest.raises(CheckpointError, match=f"they meet in {found}"):
        cut_joint(joint(**form), "encoder_outputs", "joint.onnx")


def test_a_branch_is_looked_into():
    with pytest.raises(CheckpointError, match="they meet in If"):
        cut_joint(in_a_branch(), "encoder_outputs")


def test_another_graph_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no input encoder_out; it has encoder_outputs, said"):
        cut_joint(joint(), "encoder_out")
    (tmp_path / "bad.onnx").write_bytes(b"no graph at all")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        read_graph(tmp_path / "bad.onnx")
    with pytest.raises(CheckpointError, match="no such file"):
        read_graph(tmp_path / "absent.onnx")
