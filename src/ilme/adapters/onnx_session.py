"""ONNX files on the CPU: which files of a folder make a model, and graphs that are run with torch tensors.

    recognise("zipformer/")                              # "transducer", "attention" or None, by file names alone
    graph = OnnxGraph(Path("zipformer/joiner.onnx"))
    logits, = graph.run({"encoder_out": f, "decoder_out": g}, ["logit"])

What a file says about itself (shapes, types, metadata) is checked before it is used.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.runtime.onnx import import_onnxruntime

__all__ = ["Kind", "OnnxGraph", "attention_files", "find_graph", "read_graph", "recognise", "session", "whole"]

Kind = Literal["transducer", "nemo", "attention"]
Shape = tuple[int | None, ...]

# Words in the name of a file that say how its weights are stored; without one they are float32.
PRECISIONS = {
    **dict.fromkeys(("fp16", "float16"), 1),
    **dict.fromkeys(("int8", "uint8", "quantized", "q8"), 2),
    **dict.fromkeys(("int4", "uint4", "q4", "q4f16", "bnb4"), 3),
}
QUANTISES = b"DynamicQuantize"  # how operators that round by the range of what they are given begin
TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}


def recognise(folder: str | Path) -> Kind | None:
    """What kind of ONNX model a folder holds; None if it holds none. Only names are looked at, no file is opened.

    A transducer has encoder*.onnx, decoder*.onnx and joiner*.onnx, or, of NeMo, encoder*.onnx and decoder_joint*.onnx;
    an attention model has encoder_model*.onnx and decoder_model_merged*.onnx, in the folder or in its subfolder onnx/.
    """
    folder = Path(folder)
    if find_graph(folder, "encoder") and find_graph(folder, "decoder_joint"):
        return "nemo"
    if all(find_graph(folder, part) for part in ("encoder", "decoder", "joiner")):
        return "transducer"
    return "attention" if attention_files(folder) else None


def attention_files(folder: Path) -> tuple[Path, Path] | None:
    """Encoder and merged decoder of a folder or of its subfolder onnx/, as Optimum and Transformers.js name them."""
    for place in (folder, folder / "onnx"):
        encoder, decoder = find_graph(place, "encoder_model"), find_graph(place, "decoder_model_merged")
        if encoder and decoder:
            return encoder, decoder
    return None


def find_graph(folder: Path, part: str) -> Path | None:
    """The file part*.onnx of a folder: float32 before float16 before quantised weights, then the shortest name."""

    def order(path: Path) -> tuple[int, int, str]:
        words = re.split(r"[._-]", path.stem.lower())
        return max(PRECISIONS.get(word, 0) for word in words), len(path.name), path.name

    return min(folder.glob(f"{part}*.onnx"), key=order, default=None)


class OnnxGraph:
    """One ONNX file, run on the CPU with torch tensors.

    Args:
        path: The file.
        threads: Threads of onnxruntime.
        content: A graph that was made of the file's, in its place.

    Attributes:
        inputs, outputs: Shapes by name; None for a dimension that is free.
        metadata: What the exporter wrote into the file.
        scales_by_batch: Whether activations are rounded by the range of the whole batch, as in dynamically quantised
            graphs. A row's result then depends a little on the other rows.
    """

    def __init__(self, path: Path, threads: int = 1, content: bytes | None = None) -> None:
        self.path = path
        self._session = session(path, threads, content)
        self.inputs = {i.name: _shape(i.shape) for i in self._session.get_inputs()}
        self.outputs = {o.name: _shape(o.shape) for o in self._session.get_outputs()}
        self._types = {i.name: self._type(i) for i in self._session.get_inputs()}
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.scales_by_batch = _contains(path, QUANTISES) if content is None else QUANTISES in content

    def _type(self, given: Any) -> torch.dtype:
        if given.type not in TYPES:
            raise CheckpointError(f"{self.path}: the input {given.name} is a {given.type}, which is not supported")
        return TYPES[given.type]

    def run(self, given: Mapping[str, Tensor], wanted: Sequence[str]) -> list[Tensor]:
        """The outputs `wanted`, in that order, for inputs that may be of any number format."""
        arrays = {n: x.detach().to(self._types[n]).contiguous().numpy() for n, x in given.items()}
        try:
            found = self._session.run(list(wanted), arrays)
        except Exception as error:  # onnxruntime's own kinds share no base class; the cause stays attached
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise CheckpointError(f"{self.path} cannot be run with {shapes}: {_first_line(error)}") from error
        return [torch.from_numpy(x) for x in found]


def opened(file: Path | OnnxGraph, threads: int) -> OnnxGraph:
    return file if isinstance(file, OnnxGraph) else OnnxGraph(file, threads)


def session(path: Path, threads: int = 1, content: bytes | None = None) -> Any:
    """An onnxruntime session on the CPU, of a file or of a graph that was made of it."""
    onnxruntime = import_onnxruntime("onnx")
    if threads < 1:
        raise BadInputError(f"threads must be at least 1, got {threads}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised, not printed
    try:
        given = str(path) if content is None else content
        how: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "enable_fallback": 0}  # which would print
        return onnxruntime.InferenceSession(given, options, **how)
    except Exception as error:  # onnxruntime's own kinds share no base class; the cause stays attached
        raise CheckpointError(f"{path} cannot be read as ONNX: {_first_line(error)}") from error


def read_graph(path: Path) -> Any:
    """The graph of a file, to be looked at or changed, with the weights that stand beside it."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's kinds, and those of weights that are missing; the cause stays attached
        raise CheckpointError(f"{path} cannot be read as ONNX: {_first_line(error)}") from error


def whole(value: object, what: str, least: int, most: int) -> int:
    """`value`, if it is a whole number from `least` to `most`; a number in a file may be anything."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise CheckpointError(f"{what} must be a whole number from {least} to {most}, found {value!r:.40}")
    return value


def _shape(shape: Sequence[object]) -> Shape:
    return tuple(d if isinstance(d, int) and d > 0 else None for d in shape)


def _contains(path: Path, word: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
