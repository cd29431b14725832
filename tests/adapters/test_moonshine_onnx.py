"""Moonshine's ONNX files: a tiny model written as the maker's export writes it comes back the same, or is refused.

Real files are read where the environment names them: ILME_MOONSHINE is the unpacked `dist` of the maker's package.
"""

from __future__ import annotations

import base64
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("transformers")

import onnx
import transformers

from ilme.adapters.hf import attention
from ilme.adapters.moonshine_onnx import build, convert, llama_js_tokenizer, parameters, read_graph, rename
from ilme.errors import CheckpointError
from ilme.recogniser.loading import load_model
from tests.adapters.tiny import randomise, waves

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MERGED = [f"▁{a}" for a in LETTERS] + [a + b for a, b in product(LETTERS[:13], LETTERS[13:])]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *LETTERS, *MERGED]
UNITS = len(PIECES) + 8
REAL = os.environ.get("ILME_MOONSHINE", "")


def tiny_model():
    config = transformers.MoonshineConfig(
        vocab_size=UNITS,
        hidden_size=16,
        intermediate_size=24,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    )
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    randomise(model)
    return model


def graph_parts(state, prefix, old):
    """Initialisers and nodes as in an export: vectors keep their names, matrices are transposed and have none."""
    initialisers, nodes = [], []
    for name, value in state.items():
        plain = name.removeprefix(prefix)
        for new, was in old:
            plain = plain.replace(new, was)
        path, array = plain.rpartition(".")[0], value.numpy()
        if "groupnorm" in name:
            kind = "Mul" if name.endswith("weight") else "Add"
            given, array = f"onnx::{kind}_{len(nodes)}", array[:, None]
        elif value.dim() == 2 and "embed" not in name:
            kind, given, array = "MatMul", f"onnx::MatMul_{len(nodes)}", array.T
        else:
            kind, given = "Mul", plain
        initialisers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), given))
        node = f"/{path.replace('.', '/').replace('layers/', 'layers.')}/{kind}"
        nodes.append(onnx.helper.make_node(kind, [f"{node}_in", given], [f"{node}_{len(nodes)}"], name=node))
    return initialisers, nodes


def save(path, initialisers, nodes, inputs=()):
    graph = onnx.helper.make_graph(nodes, "main", list(inputs), [], initialisers)
    onnx.save(onnx.helper.make_model(graph), path)


def write_onnx(model, folder: Path, leave_out: str = "none") -> None:
    state = {n: v for n, v in model.state_dict().items() if not n.startswith("proj_out") and leave_out not in n}
    encoder = {n: v for n, v in state.items() if n.startswith("model.encoder.")}
    save(folder / "encoder.onnx", *graph_parts(encoder, "model.encoder.", [("o_proj", "dense")]))
    maker = [("o_proj", "dense"), ("fc1", "up_proj"), ("fc2", "down_proj")]
    # Keys and values of the cross-attention are needed only without a cache: they live in a branch.
    inner = {n: v for n, v in state.items() if "encoder_attn.k_proj" in n or "encoder_attn.v_proj" in n}
    outer = {n: v for n, v in state.items() if n.startswith("model.decoder.") and n not in inner}
    initialisers, nodes = graph_parts(outer, "", maker)
    for tensor in initialisers:
        tensor.name += "_merged_0"
    for node in nodes:
        node.input[1] += "_merged_0"
    held, used = graph_parts(inner, "", maker)
    for tensor, node in zip(held, used, strict=True):
        tensor.name = node.input[1] = node.input[1].replace("MatMul_", "MatMul_9")
    branch = onnx.helper.make_graph(used, "without cache", [], [], held)
    nodes.append(onnx.helper.make_node("If", ["use_cache_branch"], [], name="if", else_branch=branch))
    frequencies = model.model.decoder.rotary_emb.inv_freq.numpy()[None, :, None]
    initialisers.append(onnx.numpy_helper.from_array(frequencies, "/model/decoder/rotary_emb/Cast_1_output_0"))
    shape = ["batch", 2, "past", 8]
    cache = onnx.helper.make_tensor_value_info("past_key_values.0.decoder.key", onnx.TensorProto.FLOAT, shape)
    save(folder / "decoder.onnx", initialisers, nodes, [cache])


def write_bundle(path: Path, pieces: list[str] = PIECES, merges: list[tuple[int, int]] | None = None) -> None:
    ids = {piece: i for i, piece in enumerate(pieces)}
    pairs = np.array(merges or [(ids[p[0]], ids[p[1]]) for p in MERGED], dtype="<u2")
    texts = [base64.b64encode(b).decode() for b in ("\n".join(pieces).encode(), pairs.tobytes())]
    other = base64.b64encode(bytes(range(256)) * 4).decode()
    path.write_text(f'const a="{other}",b="{texts[0]}",c="{texts[1]}";', encoding="utf-8")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moonshine")
    model = tiny_model()
    write_onnx(model, folder)
    write_bundle(folder / "bundle.js")
    convert(folder / "encoder.onnx", folder / "decoder.onnx", folder / "bundle.js", folder / "out")
    return folder, model


def test_every_parameter_comes_back(exported):
    folder, model = exported
    found = build(read_graph(folder / "encoder.onnx"), read_graph(folder / "decoder.onnx"))
    assert found.config.decoder_num_attention_heads == 2 and found.config.intermediate_size == 24
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=0, msg=name)


@torch.inference_mode()
def test_the_folder_loads_and_gives_the_same_logits(exported):
    folder, model = exported
    adapter = load_model(str(folder / "out"))
    (wave,) = waves(1)
    hidden, _ = adapter.hidden(*adapter.features([wave]))
    labels = torch.tensor([[300, 301, 320]])
    ours = adapter.teacher_forced(labels, attention(adapter.memory(hidden)))
    given = torch.cat([torch.tensor([adapter.prefix]), labels], 1)
    theirs = model(torch.from_numpy(wave)[None], decoder_input_ids=given).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_the_tokenizer_merges_in_order_and_falls_back_to_bytes(exported):
    folder, _ = exported
    tokenizer = load_model(str(folder / "out")).tokenizer
    names = [tokenizer.tokens.pieces[i] for i in tokenizer.encode("an anté")]
    assert names == ["▁a", "n", "▁a", "n", "t", "<0xC3>", "<0xA9>"]
    assert [tokenizer.tokens.pieces[i] for i in tokenizer.encode("zan")] == ["▁z", "an"]
    assert tokenizer.decode(tokenizer.encode("an anté zan")) == "an anté zan"
    assert tokenizer.tokens.pieces[-1] == "<<ST_7>>" and tokenizer.tokens.eos == 2


def test_names_of_parameters():
    assert rename("layers.3.self_attn.dense.weight") == "model.encoder.layers.3.self_attn.o_proj.weight"
    assert rename("model.decoder.layers.0.mlp.up_proj.bias") == "model.decoder.layers.0.mlp.fc1.bias"
    assert rename("conv1.weight") == "model.encoder.conv1.weight"


@pytest.mark.parametrize("missing", ["layers.1.mlp.fc2.weight", "encoder_attn.k_proj", "groupnorm.bias"])
def test_a_missing_parameter_is_named(exported, tmp_path, missing):
    write_onnx(exported[1], tmp_path, leave_out=missing)
    with pytest.raises(CheckpointError, match=r"missing \(model\..*" + missing.split(".")[0]):
        build(read_graph(tmp_path / "encoder.onnx"), read_graph(tmp_path / "decoder.onnx"))


def test_two_encoders_are_no_model(exported):
    graph = read_graph(exported[0] / "encoder.onnx")
    assert "model.encoder.conv1.weight" in parameters(graph)
    with pytest.raises(CheckpointError, match="no Moonshine model"):
        build(graph, graph)


def test_files_that_are_not_what_they_should_be(exported, tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read_graph(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xfe not onnx")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        read_graph(tmp_path / "bad.onnx")
    save(tmp_path / "int8.onnx", [onnx.numpy_helper.from_array(np.zeros((4, 4), np.int8), "weight_quantized")], [])
    with pytest.raises(CheckpointError, match="quantised"):
        read_graph(tmp_path / "int8.onnx")
    (tmp_path / "empty.js").write_text("const a = 1")
    with pytest.raises(CheckpointError, match="no pieces and merges"):
        llama_js_tokenizer(tmp_path / "empty.js", UNITS)
    with pytest.raises(CheckpointError, match="no such file"):
        llama_js_tokenizer(tmp_path / "none.js", UNITS)
    with pytest.raises(CheckpointError, match="the model only 10 output units"):
        llama_js_tokenizer(exported[0] / "bundle.js", 10)


@pytest.mark.skipif(not REAL, reason="ILME_MOONSHINE names no unpacked package of the maker")
@torch.inference_mode()
def test_the_real_files_agree_with_onnxruntime():
    runtime = pytest.importorskip("onnxruntime")
    folder = Path(REAL) / "model" / "tiny" / "float"
    names = folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx"
    model = build(*map(read_graph, names))
    encoder, decoder = (runtime.InferenceSession(name) for name in names)
    (wave,) = waves(1, seconds=2.0)
    (states,) = encoder.run(None, {"input_values": wave[None]})
    cache = [i for i in decoder.get_inputs() if i.name.startswith("past_key_values")]
    given = {i.name: np.zeros((0, i.shape[1], 1, i.shape[3]), np.float32) for i in cache}
    given |= {"input_ids": np.array([[1]]), "encoder_hidden_states": states, "use_cache_branch": np.array([False])}
    logits = decoder.run(["logits"], given)[0]
    found = model(torch.from_numpy(wave)[None], decoder_input_ids=torch.tensor([[1]]))
    np.testing.assert_allclose(found.encoder_last_hidden_state.numpy(), states, atol=1e-3)
    np.testing.assert_allclose(found.logits.numpy(), logits, atol=1e-3)
