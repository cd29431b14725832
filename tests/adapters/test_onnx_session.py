"""ONNX files by name, and graphs that are run with torch tensors."""

from __future__ import annotations

import pytest
import torch

from ilme.adapters.onnx_session import attention_files, find_graph, recognise, whole
from ilme.errors import CheckpointError


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["encoder-epoch-9.onnx", "decoder-epoch-9.onnx", "joiner-epoch-9.onnx", "tokens.txt"], "transducer"),
        (["encoder.int8.onnx", "decoder.int8.onnx", "joiner.int8.onnx"], "transducer"),
        (["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "config.json"], "attention"),
        (["encoder_model_quantized.onnx", "decoder_model_merged_q4.onnx"], "attention"),
        (["encoder_model.onnx", "onnx/decoder_model_merged.onnx"], None),
        (["encoder_model.onnx", "decoder_model.onnx"], None),
        (["encoder.onnx", "decoder.onnx", "tokens.txt"], None),
        (["config.json", "model.safetensors"], None),
        ([], None),
    ],
)
def test_folders_are_recognised_by_the_names_of_their_files(tmp_path, names, kind):
    touch(tmp_path, *names)
    assert recognise(tmp_path) == kind
    assert recognise(str(tmp_path)) == kind


def test_a_folder_that_does_not_exist_is_no_model(tmp_path):
    assert recognise(tmp_path / "none") is None


def test_float32_comes_before_float16_before_quantised_weights(tmp_path):
    variants = ["", "_fp16", "_int8", "_q4f16"]
    touch(tmp_path, *(f"encoder_model{v}.onnx" for v in variants), "decoder_model_merged_uint8.onnx")
    for variant in variants:
        encoder, decoder = attention_files(tmp_path)
        assert encoder.name == f"encoder_model{variant}.onnx"
        assert decoder.name == "decoder_model_merged_uint8.onnx"
        encoder.unlink()
    touch(tmp_path, "joiner-epoch-30-avg-9.int8.onnx", "joiner-epoch-30-avg-9.onnx", "joiner-epoch-30-avg-9.fp16.onnx")
    assert find_graph(tmp_path, "joiner").name == "joiner-epoch-30-avg-9.onnx"
    assert find_graph(tmp_path, "decoder_model").name == "decoder_model_merged_uint8.onnx"


@pytest.mark.parametrize("value", [0, 65, -1, True, 2.0, "2", None, [2], "9" * 500])
def test_a_number_of_a_file_is_whole_and_in_range(value):
    with pytest.raises(CheckpointError, match=r"context must be a whole number from 1 to 64, found .{1,40}$"):
        whole(value, "context", 1, 64)
    assert whole(2, "context", 1, 64) == 2


@pytest.fixture
def product(tmp_path):
    """y = x w in float16, with metadata and a free number of rows."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    import numpy as np

    info, half = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT16
    weight = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float16).reshape(3, 2), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [info("x", half, ["n", 3])], [info("y", half, ["n", 2])], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.helper.set_model_props(model, {"context_size": "2"})
    onnx.save(model, tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


def test_a_graph_takes_tensors_of_any_format(product):
    from ilme.adapters.onnx_session import OnnxGraph

    graph = OnnxGraph(product)
    assert graph.inputs == {"x": (None, 3)} and graph.outputs == {"y": (None, 2)}
    assert graph.metadata == {"context_size": "2"} and not graph.scales_by_batch
    (found,) = graph.run({"x": torch.ones(2, 3, dtype=torch.float64, requires_grad=True)}, ["y"])
    assert found.dtype == torch.float16 and found.tolist() == [[6.0, 9.0]] * 2


def test_a_graph_says_what_it_cannot_be_run_with(product):
    from ilme.adapters.onnx_session import OnnxGraph

    with pytest.raises(CheckpointError, match=r"product.onnx cannot be run with x \(2, 4\)"):
        OnnxGraph(product).run({"x": torch.ones(2, 4)}, ["y"])
