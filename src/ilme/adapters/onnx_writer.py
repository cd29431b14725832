"""The three graphs of an RNN-T of ours in ONNX, in icefall's layout, written node by node.

The encoder reads plain filter banks: normalisation and stacking are in its graph. LSTM layers get the lengths of the
utterances, so that a padded batch gives what each utterance gives alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ilme.adapters.onnx_frames import Frames
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError, MissingExtraError
from ilme.models.encoder import LSTMEncoder
from ilme.models.rnnt import RNNT, LSTMPrediction

try:
    import onnx
except ImportError as error:
    raise MissingExtraError("onnx", "onnx") from error

__all__ = ["Graph", "decoder_graph", "encoder_graph", "joiner_graph"]

OPSET, IR = 17, 8  # the oldest with LayerNormalization
FLOAT, INT32, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64
Operand = str | Tensor | int | list[int]
Shape = list[int | str]


def encoder_graph(model: RNNT) -> Any:
    """x (N, T, M), x_lens (N,) → encoder_out (N, T', J), encoder_out_lens (N,)."""
    graph, frontend = Graph(), model.frontend
    x, lengths = graph.normalise("x", "x_lens", frontend), "x_lens"
    x = graph.stack(x, frontend.stack, frontend.stride)
    shift = graph.add("Add", lengths, frontend.stride - frontend.stack)  # ⌊(T − K) / stride⌋ + 1, or 0
    lengths = graph.add("Div", graph.add("Max", shift, 0), frontend.stride)
    x, lengths = graph.layers(x, lengths, model.encoder)
    banks = replace(frontend, stack=1, stride=1, normalisation="none", mean=(), istd=())
    return graph.finish(
        inputs={"x": ["N", "T", frontend.mel_bins], "x_lens": ["N"]},
        outputs={
            "encoder_out": (graph.sequence(x, model.encoder_head), ["N", "T'", model.config.joint]),
            "encoder_out_lens": (lengths, ["N"]),
        },
        whole=("x_lens", "encoder_out_lens"),
        metadata=Frames(banks, snip_edges=True, least=frontend.stack).metadata(),
    )


def decoder_graph(model: RNNT) -> Any:
    """y (N, context) → decoder_out (N, J); of an LSTM also state_0, state_1 (N, layers, hidden) → next_state_…."""
    graph, net = Graph(), model.predictor
    inputs: dict[str, Shape] = {"y": ["N", 1 if isinstance(net, LSTMPrediction) else net.context]}
    embedded = graph.add("Gather", net.embedding.weight, "y")  # (N, context, D)
    states: dict[str, tuple[str, Shape]] = {}
    if isinstance(net, LSTMPrediction):
        size: Shape = ["N", net.rnn.layers, net.rnn.hidden]
        inputs |= {"state_0": size, "state_1": size}
        h, made = graph.steps(embedded, net.rnn.lstm, ("state_0", "state_1"))
        states = {f"next_state_{i}": (name, size) for i, name in enumerate(made)}
    else:
        h = graph.add("Relu", graph.linear(graph.add("Flatten", embedded), net.mix))
    return graph.finish(
        inputs=inputs,
        outputs={"decoder_out": (graph.sequence(h, model.prediction_head), ["N", model.config.joint]), **states},
        whole=("y",),
        metadata={"context_size": str(inputs["y"][1]), "vocab_size": str(len(model.tokens))},
    )


def joiner_graph(model: RNNT) -> Any:
    """logit (N, V) = W tanh(encoder_out + decoder_out) + b; with HAT the blank's is that of the factorisation."""
    graph, size = Graph(), model.config.joint
    logits = graph.linear(graph.add("Tanh", graph.add("Add", "encoder_out", "decoder_out")), model.output)
    if model.config.hat:
        logits = graph.factorised(logits, model.tokens.blank or 0, len(model.tokens))
    return graph.finish(
        inputs={"encoder_out": ["N", size], "decoder_out": ["N", size]},
        outputs={"logit": (logits, ["N", len(model.tokens)])},
        metadata={"joiner_dim": str(size)},
    )


class Graph:
    """A graph in the making. A method adds nodes and returns the name of what they put out.

    An operand is the name of another, or a constant: a tensor, a whole number or a list of them.
    """

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, kind: str, *operands: Operand, **attributes: Any) -> str:
        """One node with one output."""
        return self.add_many(kind, 1, *operands, **attributes)[0]

    def add_many(self, kind: str, outputs: int, *operands: Operand, **attributes: Any) -> list[str]:
        inputs = [o if isinstance(o, str) else self._constant(o) for o in operands]
        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(onnx.helper.make_node(kind, inputs, names, **attributes))
        return names

    def _constant(self, value: Tensor | int | list[int]) -> str:
        if isinstance(value, Tensor):
            kind = torch.float32 if value.is_floating_point() else torch.int64
            array = value.detach().to("cpu", kind).contiguous().numpy()
        else:
            array = np.array(value, dtype=np.int64)
        self._constants.append(onnx.numpy_helper.from_array(array, f"c{len(self._constants)}"))
        return str(self._constants[-1].name)

    def finish(
        self,
        inputs: Mapping[str, Shape],
        outputs: Mapping[str, tuple[str, Shape]],
        metadata: Mapping[str, str],
        whole: tuple[str, ...] = (),
    ) -> Any:
        """The model; `outputs` are names of operands with their shapes, those in `whole` are whole numbers."""

        def about(name: str, shape: Shape) -> Any:
            kind = INT64 if name in whole else FLOAT
            return onnx.helper.make_tensor_value_info(name, kind, shape)

        named = [onnx.helper.make_node("Identity", [operand], [name]) for name, (operand, _) in outputs.items()]
        graph = onnx.helper.make_graph(
            [*self._nodes, *named],
            "ilme",
            [about(name, shape) for name, shape in inputs.items()],
            [about(name, shape) for name, (_, shape) in outputs.items()],
            initializer=self._constants,
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR)
        onnx.helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model

    def linear(self, x: str, layer: nn.Linear) -> str:
        return self.add("Add", self.add("MatMul", x, layer.weight.T), layer.bias)

    def factorised(self, z: str, blank: int, units: int) -> str:
        """As `ilme.models.rnnt.factorised_logits`: log Σ_{v ≠ blank} exp z_v is added to the blank's z."""
        is_blank = (torch.arange(units) == blank).float()
        labels = self.add("ReduceLogSumExp", self.add("Add", z, -1e30 * is_blank), axes=[1], keepdims=1)
        return self.add("Add", z, self.add("Mul", labels, is_blank))

    def sequence(self, x: str, layers: nn.Module) -> str:
        """Linear layers and layer norms; nothing for an Identity."""
        for layer in layers.children():
            if isinstance(layer, nn.Linear):
                x = self.linear(x, layer)
            elif isinstance(layer, nn.LayerNorm):
                x = self.add("LayerNormalization", x, layer.weight, layer.bias, epsilon=layer.eps)
            else:
                raise BadInputError(f"a layer of type {type(layer).__name__} cannot be exported")
        return x

    def size(self, x: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", x), axis)

    def count(self, size: str) -> str:
        """0 … size − 1."""
        return self.add("Range", 0, size, 1)

    def inside(self, x: str, lengths: str) -> str:
        """1 for the frames of each utterance and 0 after its end, (N, T, 1) for x (N, T, D)."""
        within = self.add("Less", self.count(self.size(x, 1)), self.add("Unsqueeze", lengths, [1]))
        return self.add("Unsqueeze", self.add("Cast", within, to=FLOAT), [2])

    def normalise(self, x: str, lengths: str, frontend: FrontendConfig) -> str:
        """As `ilme.data.features.Frontend` does, over the frames of each utterance."""
        if frontend.normalisation == "none":
            return x
        if frontend.normalisation == "global":
            mean, istd = (torch.tensor(v, dtype=torch.float32) for v in (frontend.mean, frontend.istd))
            return self.add("Mul", self.add("Sub", x, mean), istd)
        mask = self.inside(x, lengths)
        count = self.add("Max", self.add("ReduceSum", mask, [1]), torch.ones(1))  # (N, 1, 1)
        average = self.add("Div", self.add("ReduceSum", self.add("Mul", x, mask), [1]), count)
        centred = self.add("Mul", self.add("Sub", x, average), mask)
        variance = self.add("Div", self.add("ReduceSum", self.add("Mul", centred, centred), [1]), count)
        return self.add("Div", centred, self.add("Sqrt", self.add("Add", variance, torch.tensor(1e-5))))

    def stack(self, x: str, stack: int, stride: int) -> str:
        """(N, T, D) to (N, ⌊(T − stack) / stride⌋ + 1, stack · D)."""
        vectors = self.add("Div", self.add("Add", self.size(x, 1), stride - stack), stride)
        firsts = self.add("Unsqueeze", self.add("Mul", self.count(vectors), stride), [1])
        windows = self.add("Gather", x, self.add("Add", firsts, torch.arange(stack)), axis=1)  # (N, T', stack, D)
        return self.flat(windows)

    def flat(self, x: str) -> str:
        """(N, T, …) to (N, T, D)."""
        return self.add("Reshape", x, [0, 0, -1])

    def layers(self, x: str, lengths: str, encoder: LSTMEncoder) -> tuple[str, str]:
        """The encoder's LSTM layers, with their projections and the reduction of time between two of them."""
        config, done = encoder.config, 0
        for block in encoder.blocks:
            x = self.sequence(self.lstm(x, lengths, block.lstm), block.project)  # type: ignore[arg-type]
            done += int(block.count)  # type: ignore[arg-type]
            if config.time_reduction > 1 and done == config.reduce_after:
                x, lengths = self.reduce(x, lengths, config.time_reduction, config.reduce_by == "mean")
        return x, lengths

    def reduce(self, x: str, lengths: str, factor: int, mean: bool) -> tuple[str, str]:
        """Groups of `factor` frames, (N, ⌈T/factor⌉, factor · D), zeros after the end; or their means."""
        filled = self.add("Pad", self.add("Mul", x, self.inside(x, lengths)), [0, 0, 0, 0, factor - 1, 0])
        groups = self.stack(filled, factor, factor)
        shorter = self.add("Div", self.add("Add", lengths, factor - 1), factor)
        if mean:
            apart = self.add("Reshape", groups, [0, 0, factor, -1])
            firsts = self.add("Mul", self.count(self.size(groups, 1)), factor)
            own = self.add("Sub", self.add("Unsqueeze", lengths, [1]), firsts)  # frames from each group to the end
            own = self.add("Cast", self.add("Min", self.add("Max", own, 1), factor), to=FLOAT)
            groups = self.add("Div", self.add("ReduceSum", apart, [2], keepdims=0), self.add("Unsqueeze", own, [2]))
        return groups, shorter

    def lstm(self, x: str, lengths: str, net: nn.LSTM) -> str:
        """(N, T, D) to (N, T, H), or 2 H in both directions; each utterance is read to its own end."""
        x = self.add("Transpose", x, perm=[1, 0, 2])
        heard = self.add("Cast", self.add("Max", lengths, 1), to=INT32)
        for layer in range(net.num_layers):
            y = self.add_many("LSTM", 3, x, *_weights(net, layer), heard, **_form(net))[0]  # (T, ways, N, H)
            x = self.flat(self.add("Transpose", y, perm=[0, 2, 1, 3]))
        return self.add("Transpose", x, perm=[1, 0, 2])

    def steps(self, x: str, net: nn.LSTM, state: tuple[str, str]) -> tuple[str, list[str]]:
        """One label, (N, 1, D) to (N, H), and the new h and c (N, layers, H)."""
        x = self.add("Transpose", x, perm=[1, 0, 2])
        made: list[list[str]] = []
        for layer in range(net.num_layers):
            before = [self.add("Unsqueeze", self.add("Gather", s, layer, axis=1), [0]) for s in state]
            y, *after = self.add_many("LSTM", 3, x, *_weights(net, layer), "", *before, **_form(net))
            made.append([self.add("Transpose", s, perm=[1, 0, 2]) for s in after])
            x = self.add("Squeeze", y, [1])
        return self.add("Squeeze", x, [0]), [self.add("Concat", *parts, axis=1) for parts in zip(*made, strict=True)]


def _form(net: nn.LSTM) -> dict[str, Any]:
    return {"hidden_size": net.hidden_size, "direction": "bidirectional" if net.bidirectional else "forward"}


def _weights(net: nn.LSTM, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """W (ways, 4H, D), R (ways, 4H, H) and both biases (ways, 8H) of a layer, gates in ONNX's order."""

    def read(name: str, way: str) -> Tensor:
        i, f, g, o = getattr(net, f"{name}_l{layer}{way}").chunk(4)
        return torch.cat([i, o, f, g])

    ways = ("", "_reverse") if net.bidirectional else ("",)
    return (
        torch.stack([read("weight_ih", way) for way in ways]),
        torch.stack([read("weight_hh", way) for way in ways]),
        torch.stack([torch.cat([read("bias_ih", way), read("bias_hh", way)]) for way in ways]),
    )
