"""The graphs of tiny RNN-Ts, run by onnxruntime: terms and logits are those of torch, in padded batches, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from ilme.adapters.onnx_session import OnnxGraph
from ilme.adapters.onnx_writer import decoder_graph, encoder_graph, joiner_graph
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.models.encoder import EncoderConfig
from ilme.models.rnnt import RNNT, RNNTConfig
from ilme.testing import numbered_tokens

PLAIN = FrontendConfig(mel_bins=10, stack=1, stride=1, normalisation="none")
FRONTENDS = {
    "plain": PLAIN,
    "utterance": replace(PLAIN, stack=3, stride=3, normalisation="utterance"),
    "global": replace(
        PLAIN, stack=2, stride=3, normalisation="global", mean=tuple(range(10)), istd=(0.5,) * 5 + (2.0,) * 5
    ),
    "overlapping": replace(PLAIN, stack=4, stride=2, normalisation="utterance"),
}
ENCODERS = {
    "forward": EncoderConfig(hidden=6, layers=2),
    "both ways": EncoderConfig(hidden=6, layers=3, bidirectional=True),
    "projected": EncoderConfig(hidden=6, layers=3, bidirectional=True, projection=8, time_reduction=2, reduce_after=1),
    "mean": EncoderConfig(hidden=6, layers=3, bidirectional=True, time_reduction=3, reduce_by="mean"),
}


def network(frontend: FrontendConfig, encoder: EncoderConfig = ENCODERS["forward"], **config: object) -> RNNT:
    sizes = {"embedding": 5, "prediction_hidden": 7, "prediction_layers": 2, "projection": 8, "joint": 9, **config}
    torch.manual_seed(0)
    model = RNNT(
        RNNTConfig(encoder=replace(encoder, features=frontend.dimension), **sizes), numbered_tokens(12, "transducer")
    )
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) / 5)
    model.attach(None, frontend)
    return model.eval()


def graph(made, folder) -> OnnxGraph:
    (folder / "graph.onnx").write_bytes(made.SerializeToString())
    return OnnxGraph(folder / "graph.onnx")


@torch.no_grad()
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoder_of_a_padded_batch(frontend, encoder, tmp_path):
    from ilme.data.features import Frontend, stack_frames

    config = FRONTENDS[frontend]
    model = network(config, ENCODERS[encoder])
    encoder_graph_ = graph(encoder_graph(model), tmp_path)
    banks, frames = torch.randn(4, 37, 10) * 3 + 1, torch.tensor([37, 22, 5, 36])
    for b in range(4):
        banks[b, frames[b] :] = 99.0  # what stands after an utterance's end is not heard
    f, lengths = encoder_graph_.run({"x": banks, "x_lens": frames}, ["encoder_out", "encoder_out_lens"])
    for b, n in enumerate(frames):
        own = Frontend(config)._normalise(banks[b : b + 1, :n], n[None])
        vectors = stack_frames(own, config.stack, config.stride)
        expected, size = model.encode(vectors, torch.tensor([vectors.shape[1]]))
        assert lengths[b] == size[0]
        torch.testing.assert_close(f[b, : int(size)], expected[0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_decoder_keeps_its_states(layers, tmp_path):
    model = network(PLAIN, prediction_layers=layers)
    decoder = graph(decoder_graph(model), tmp_path)
    assert decoder.inputs == {"y": (None, 1), "state_0": (None, layers, 7), "state_1": (None, layers, 7)}
    g, state = model.start(3)
    states = [torch.zeros(3, layers, 7)] * 2
    for labels in ([0, 0, 0], [3, 4, 5], [1, 11, 2]):
        given = {"y": torch.tensor(labels)[:, None], "state_0": states[0], "state_1": states[1]}
        found, *states = decoder.run(given, list(decoder.outputs))
        if any(labels):
            g, state = model.predict(torch.tensor(labels), state)
        for ours, theirs in zip((g, *state), (found, *states), strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_stateless_decoder_and_the_joiner(tmp_path):
    model = network(PLAIN, prediction="stateless", context=3)
    decoder = graph(decoder_graph(model), tmp_path)
    assert decoder.inputs == {"y": (None, 3)} and decoder.metadata["context_size"] == "3"
    history = torch.tensor([[0, 0, 4], [5, 2, 3]])
    (g,) = decoder.run({"y": history}, ["decoder_out"])
    torch.testing.assert_close(g, model.prediction_head(model.predictor._output(history)), atol=1e-5, rtol=1e-4)
    joiner = graph(joiner_graph(model), tmp_path)
    f = torch.randn(2, 9)
    (logits,) = joiner.run({"encoder_out": f, "decoder_out": g}, ["logit"])
    torch.testing.assert_close(logits, model.join(f, g), atol=1e-5, rtol=1e-4)


def test_a_layer_that_has_no_node_is_named():
    model = network(PLAIN)
    model.prediction_head.append(torch.nn.GELU())
    with pytest.raises(BadInputError, match="type GELU cannot be exported"):
        decoder_graph(model)
