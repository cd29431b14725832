"""A joint network in ONNX, cut where what was heard and what was said first meet, in memory; no file is changed.

    parts = cut_joint(read_graph("decoder_joint-model.onnx"), "encoder_outputs")

    heard      encoder_outputs            → f = W_e h_enc + b_e
    said       targets, states …          → g = W_p h_pred + b_p, new states …
    together   f, g                       → logits J(f + g)

NeMo's exports have the encoder's projection inside the joint network, bias included, so zeros for the encoder's output
would leave b_e in. Behind the cut zeros for f are exact, since the two are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ilme.errors import CheckpointError

__all__ = ["JointParts", "cut_joint"]

HEARD, SAID = 1, 2


class JointParts(NamedTuple):
    """Three graphs as bytes of ONNX. Outputs of `said` are g, then what the whole graph gave of the labels alone."""

    heard: bytes
    said: bytes
    together: bytes


def cut_joint(model: Any, heard: str, name: str = "the joint network") -> JointParts:
    """Cuts a graph at the one sum of a term of the input `heard` alone and a term of the other inputs alone.

    Args:
        model: The graph; its first output are the logits.
        heard: The input with the encoder's outputs.
        name: What it is called in errors.
    """
    graph = model.graph
    constant = {tensor.name for tensor in graph.initializer}
    inputs = [given.name for given in graph.input if given.name not in constant]
    if heard not in inputs:
        raise CheckpointError(f"{name} has no input {heard}; it has {', '.join(inputs)}")
    of = _sources(graph, {n: HEARD if n == heard else SAID for n in inputs})
    meetings = [node for node in graph.node if _meet(node, of)]
    if len(meetings) != 1 or meetings[0].op_type != "Add":
        found = ", ".join(node.op_type for node in meetings) or "nowhere"
        raise CheckpointError(
            f"{name} is no sum of a term of {heard} and a term of the labels: they meet in {found}. Its internal LM "
            "cannot be read out"
        )
    f, g = sorted(meetings[0].input, key=lambda operand: of[operand])
    said = [n for n in inputs if n != heard]
    outputs = [out.name for out in graph.output]
    alone = [n for n in outputs[1:] if not of.get(n, 0) & HEARD]
    return JointParts(
        _part(model, [heard], [f], name),
        _part(model, said, [g, *alone], name),
        _part(model, [f, g], outputs[:1], name),
    )


def _sources(graph: Any, known: dict[str, int]) -> dict[str, int]:
    """Which kinds of input each value comes from; nodes of ONNX stand in the order in which they are computed."""
    of = dict(known)
    for node in graph.node:
        reads = 0
        for operand in _reads(node):
            reads |= of.get(operand, 0)
        of |= dict.fromkeys(node.output, reads)
    return of


def _meet(node: Any, of: dict[str, int]) -> bool:
    kinds = {of.get(operand, 0) for operand in _reads(node)}
    return HEARD in kinds and SAID in kinds and HEARD | SAID not in kinds


def _reads(node: Any) -> Iterator[str]:
    """What a node reads, its branches included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for branch in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():  # a graph, or several
            made = {given.name for given in branch.input} | {tensor.name for tensor in branch.initializer}
            for inner in branch.node:
                yield from (operand for operand in _reads(inner) if operand not in made)
                made |= set(inner.output)
            yield from (out.name for out in branch.output if out.name not in made)


def _part(model: Any, inputs: list[str], outputs: list[str], name: str) -> bytes:
    """What computes `outputs` of `inputs`."""
    import onnx

    graph = model.graph
    needed = set(outputs) - set(inputs)
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed = (needed - set(node.output)) | (set(_reads(node)) - set(inputs))
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    missing = needed - {tensor.name for tensor in constants}
    if missing:
        raise CheckpointError(f"{name} cannot be cut: {outputs[0]} needs {', '.join(sorted(missing))} as well")
    types = {v.name: v.type for v in (*graph.input, *graph.output)}
    float_type = next(v.type.tensor_type.elem_type for v in graph.output)

    def about(value: str, as_name: str) -> Any:
        if value in types:
            found = onnx.ValueInfoProto()
            found.name, _ = as_name, found.type.CopyFrom(types[value])
            return found
        return onnx.helper.make_tensor_value_info(as_name, float_type, None)

    named = [onnx.helper.make_node("Identity", [value], [f"{value}_cut"]) for value in outputs]
    part = onnx.helper.make_graph(
        [*reversed(nodes), *named],
        "part",
        [about(value, value) for value in inputs if _is_read(value, nodes, outputs)],
        [about(value, f"{value}_cut") for value in outputs],
        initializer=constants,
    )
    made = onnx.helper.make_model(
        part, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )
    return bytes(made.SerializeToString())


def _is_read(value: str, nodes: Iterable[Any], outputs: list[str]) -> bool:
    return value in outputs or any(value in _reads(node) for node in nodes)
