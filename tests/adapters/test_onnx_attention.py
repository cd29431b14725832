"""A tiny Moonshine exported as Optimum merges decoders: equal to `transformers`, searched, its internal LMs checked.

Real files are run where the environment names them: ILME_MOONSHINE is the unpacked `dist` of the maker's package.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

import onnx

from ilme.adapters.moonshine import unwritten
from ilme.adapters.moonshine_onnx import build, read_graph
from ilme.adapters.onnx_attention import INTERNAL, OnnxAttention, OnnxInternalLM, internal_lm, moonshine
from ilme.adapters.recognition import AdaptedRecogniser, search_options
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm.transformer import Calibration, estimate
from ilme.testing.contract import attention_rows, check_attention_model, check_internal_lm, scorer_rows
from tests.adapters.tiny import tiny_moonshine, waves

LABELS = [5, 9, 12, 5, 30]
REAL = os.environ.get("ILME_MOONSHINE", "")


class Encoder(nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self.encoder = model.model.get_encoder()

    def forward(self, input_values):
        return self.encoder(input_values).last_hidden_state


def run(decoder, labels, past, cross):
    """The decoder with the number of sequences left open: logits, and the keys and values of the labels."""
    x, cache = decoder.embed(labels, 0), []
    for i, layer in enumerate(decoder.layers):
        qkv = layer.self_qkv(layer.self_norm(x))
        mixed, entry = decoder._self_attention(layer, qkv, past[i] if past else None)
        cache.append(entry)
        x = x + layer.self_out(mixed)
        query = layer.split(layer.cross_q(layer.cross_norm(x)))
        mixed = nn.functional.scaled_dot_product_attention(query, *cross[i], scale=layer.scale)
        x = x + layer.cross_out(mixed.transpose(1, 2).flatten(2))
        x = x + layer.forward(layer.forward_norm(x))
    return decoder.output(decoder.norm(x)), cache


class FirstLabel(nn.Module):
    """The decoder's branch without a cache: it makes the keys and values of the encoder's states, too."""

    def __init__(self, model) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, input_ids, encoder_hidden_states):
        cross = [layer.keys_and_values(encoder_hidden_states) for layer in self.decoder.layers]
        logits, cache = run(self.decoder, input_ids, None, cross)
        return (logits, *(x for own, other in zip(cache, cross, strict=True) for x in (*own, *other)))


class NextLabel(nn.Module):
    """The branch with a cache: the encoder's states are not read again."""

    def __init__(self, model) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, input_ids, past):
        layers = [past[i : i + 4] for i in range(0, len(past), 4)]
        logits, cache = run(self.decoder, input_ids, [p[:2] for p in layers], [p[2:] for p in layers])
        return (logits, *(x for pair in cache for x in pair))


def names(kind: str, layers: int) -> list[str]:
    parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    return [f"{kind}.{i}.{part}" for i in range(layers) for part in parts]


def export(module, example, path, shapes, inputs, outputs):
    torch.onnx.export(
        module.eval(),
        example,
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=inputs,
        output_names=outputs,
        verbose=False,
        optimize=True,
    )
    return onnx.load(path)


def branch(model, name: str, outputs: list[str], nothing: list[str]):
    """A graph as a branch: it reads the outer graph's inputs by name; outputs it lacks are empty tensors."""
    graph = model.graph
    for output in nothing:
        empty = onnx.numpy_helper.from_array(np.zeros((0, 2, 1, 8), np.float32), output)
        graph.node.append(onnx.helper.make_node("Constant", [], [output], name=f"no {output}", value=empty))
        graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [0, 2, 1, 8]))
    known = {o.name: o for o in graph.output}
    return onnx.helper.make_graph(
        list(graph.node), name, [], [known[o] for o in outputs], initializer=list(graph.initializer)
    )


def write_merged(model, folder: Path) -> None:
    layers = len(model.decoder.layers)
    past, present = names("past_key_values", layers), names("present", layers)
    n, frames, length = (torch.export.Dim(x, min=1, max=60) for x in ("n", "frames", "length"))
    samples = torch.export.Dim("samples", min=1600, max=160_000)
    export(
        Encoder(model),
        (torch.randn(2, 8000),),
        folder / "encoder.onnx",
        ({0: n, 1: samples},),
        ["input_values"],
        ["last_hidden_state"],
    )
    first = export(
        FirstLabel(model),
        (torch.ones(2, 1, dtype=torch.int64), torch.randn(2, 7, 16)),
        folder / "first.onnx",
        ({0: n}, {0: n, 1: frames}),
        ["input_ids", "encoder_hidden_states"],
        ["logits", *present],
    )
    cached = [torch.randn(2, 2, 5 if "decoder" in name else 7, 8) for name in past]
    shapes = [{0: n, 2: length if "decoder" in name else frames} for name in past]
    own = [name for name in present if "decoder" in name]
    after = export(
        NextLabel(model),
        (torch.ones(2, 1, dtype=torch.int64), cached),
        folder / "next.onnx",
        ({0: n}, shapes),
        ["input_ids", *past],
        ["logits", *own],
    )
    outputs = ["logits", *present]
    info = onnx.helper.make_tensor_value_info
    cached_inputs = [
        info(name, onnx.TensorProto.FLOAT, ["n", 2, "length" if "decoder" in name else "frames", 8]) for name in past
    ]
    node = onnx.helper.make_node(
        "If",
        ["use_cache_branch"],
        outputs,
        name="merged",
        then_branch=branch(after, "with cache", outputs, [name for name in present if name not in own]),
        else_branch=branch(first, "without cache", outputs, []),
    )
    graph = onnx.helper.make_graph(
        [node],
        "decoder",
        [
            info("input_ids", onnx.TensorProto.INT64, ["n", "new"]),
            info("encoder_hidden_states", onnx.TensorProto.FLOAT, ["n", "frames", 16]),
            *cached_inputs,
            info("use_cache_branch", onnx.TensorProto.BOOL, [1]),
        ],
        [info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
    )
    merged = onnx.helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    merged.functions.extend({f.name: f for m in (first, after) for f in m.functions}.values())
    onnx.save(merged, folder / "decoder.onnx")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    twin = tiny_moonshine()
    write_merged(twin, folder)
    suppress = unwritten(twin.tokenizer, 2)
    model = OnnxAttention(
        folder / "encoder.onnx", folder / "decoder.onnx", twin.tokenizer, prefix=[0], suppress=suppress, max_labels=40
    )
    return model, twin, folder


@torch.no_grad()
def test_logits_equal_transformers(both):
    model, twin, _ = both
    features, lengths = model.features(waves(2))
    rows = attention_rows(model, model.encode(features, lengths), [LABELS] * 2)
    for b, length in enumerate(lengths.tolist()):
        ids = torch.tensor([[0, *LABELS]])
        upstream = twin.model(features[b : b + 1, :length], decoder_input_ids=ids).logits
        torch.testing.assert_close(rows[b], (upstream[0] + model.allowed).log_softmax(-1), atol=1e-4, rtol=0)


def test_contract(both):
    model = both[0]
    check_attention_model(model, *model.features(waves(2)), LABELS)


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_lms_keep_the_contract_and_equal_those_of_the_open_model(both, name):
    model, twin, _ = both
    speech = waves(3)
    scorer = internal_lm(name, model, speech)
    check_internal_lm(scorer, model, *model.features(speech[:2]), LABELS)
    hidden, mask = twin.hidden(*twin.features(speech))
    states = [h[m] for h, m in zip(hidden, mask, strict=True)]
    open_one = estimate(name, twin, Calibration(states, [()] * 3))
    torch.testing.assert_close(scorer_rows(scorer, [LABELS]), scorer_rows(open_one, [LABELS]), atol=1e-4, rtol=0)


def test_what_is_inside_a_layer_cannot_be_replaced(both):
    with pytest.raises(BadInputError, match=r"closed.*zeroed, silence, mean-encoder, not 'learned'"):
        internal_lm("learned", both[0])
    with pytest.raises(BadInputError, match="give a few utterances"):
        internal_lm("mean-encoder", both[0])
    with pytest.raises(BadInputError, match=r"must be \(T, 16\), not \(3, 5\)"):
        OnnxInternalLM(both[0], torch.zeros(3, 5), "other")


def test_search_finds_what_the_open_model_finds(both):
    model, twin, _ = both
    weights = FusionWeights(subtracted=0.3)
    found = []
    for host, scorer in ((model, internal_lm("silence", model)), (twin, estimate("silence", twin))):
        recogniser = AdaptedRecogniser(host, subtracted=scorer, options=search_options(3))
        found.append(recogniser.search(recogniser.encode(waves(2)), weights, 3))
    for closed, opened in zip(*found, strict=True):
        assert [h.tokens for h in closed] == [h.tokens for h in opened] and closed
        assert closed[0].score == pytest.approx(opened[0].score, abs=1e-3)
        assert closed[0].scores.subtracted == pytest.approx(opened[0].scores.subtracted, abs=1e-3)


def test_files_that_are_no_merged_decoder(both):
    model, _, folder = both
    with pytest.raises(CheckpointError, match=r"no merged decoder: expected the inputs .* found input_values and 0"):
        OnnxAttention(folder / "encoder.onnx", folder / "encoder.onnx", model.tokenizer, prefix=[0])
    (folder / "bad.onnx").write_bytes(b"not onnx")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        OnnxAttention(folder / "bad.onnx", folder / "decoder.onnx", model.tokenizer, prefix=[0])


@pytest.mark.skipif(not REAL, reason="ILME_MOONSHINE names no unpacked package of the maker")
@torch.inference_mode()
def test_the_real_graph_gives_the_internal_lm_of_its_weights():
    folder = Path(REAL) / "model" / "tiny" / "float"
    files = folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx"
    model = moonshine(*files, Path(REAL) / "moonshine.min.js")
    check_attention_model(model, *model.features(waves(2)), [300, 301, 29900], tolerance=1e-3)
    scorer = internal_lm("silence", model)
    check_internal_lm(scorer, model, *model.features(waves(2)), [300, 301, 29900], tolerance=1e-3)
    upstream = build(*map(read_graph, files))
    silence = torch.zeros(1, 48_000)
    logits = upstream(silence, decoder_input_ids=torch.tensor([[1, 300, 301, 29900]])).logits[0]
    allowed = model.allowed.clamp(min=-1e4)
    rows = scorer_rows(scorer, [[300, 301, 29900]])[0]
    torch.testing.assert_close(rows, (logits + allowed).log_softmax(-1), atol=1e-2, rtol=0)
