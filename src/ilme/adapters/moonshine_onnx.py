"""Moonshine weights in ONNX, as the maker's own package carries them, as a folder that `transformers` and we can load.

    convert("float/encoder_model.onnx", "float/decoder_model_merged.onnx", "moonshine.min.js", "moonshine-tiny/")
    model = ilme.load_model("moonshine-tiny/")

An exported graph keeps the names of some parameters; the matrices of linear maps have lost theirs and are transposed.
The node that uses a matrix still says whose it is: the second input of /layers.0/self_attn/q_proj/MatMul is the
transpose of layers.0.self_attn.q_proj.weight. The size of the network follows from the shapes, the number of heads
from the shape of the decoder's cache. Nothing is guessed: a parameter too many or too few is an error.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.adapters import onnx_session as session
from ilme.errors import CheckpointError, MissingExtraError

__all__ = ["Graph", "build", "config_of", "convert", "llama_js_tokenizer", "parameters", "read_graph", "rename"]

# The maker's name of a module and the name in `transformers`.
RENAMES = ((r"\.dense\.", ".o_proj."), (r"\.up_proj\.", ".fc1."), (r"\.down_proj\.", ".fc2."))
MERGED = re.compile(r"_merged_\d+$")  # added where two exported graphs share their weights
FREQUENCIES = re.compile(r"rotary_emb/Cast\w*_output_0$")
BASE64 = re.compile(r"[A-Za-z0-9+/]{1000,}={0,2}")
SPACE = "▁"
SOS, EOS = 1, 2  # <s> and </s> of the tokenizer


@dataclass(frozen=True)
class Graph:
    """What is needed of an ONNX file.

    Attributes:
        initialisers: Constant tensors by name, those of inner graphs included.
        users: (path, kind, inputs) of each node: the module that it came from, its operation and its inputs.
        inputs: Shape of each input; 0 for a free dimension.
    """

    initialisers: dict[str, np.ndarray[Any, Any]]
    users: tuple[tuple[str, str, tuple[str, ...]], ...]
    inputs: dict[str, tuple[int, ...]]


def read_graph(path: Path) -> Graph:
    """Reads an ONNX file; the branches of an If count as parts of the graph."""
    model = session.read_graph(path)
    from onnx import numpy_helper

    graphs = list(_with_inner(model.graph))
    initialisers = {i.name: numpy_helper.to_array(i) for g in graphs for i in g.initializer}
    if any(value.dtype in (np.int8, np.uint8) and value.ndim == 2 for value in initialisers.values()):
        raise CheckpointError(f"{path} holds quantised weights; use the float32 files")
    return Graph(
        initialisers,
        tuple((_module(n.name), n.op_type, tuple(n.input)) for g in graphs for n in g.node),
        {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model.graph.input},
    )


def _with_inner(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_inner(attribute.g)


def _module(node: str) -> str:
    """/layers.0/mlp/fc1/MatMul → layers.0.mlp.fc1."""
    return ".".join(node.strip("/").split("/")[:-1])


def rename(name: str) -> str:
    """layers.0.self_attn.dense.weight → model.encoder.layers.0.self_attn.o_proj.weight."""
    name = name if name.startswith(("model.", "proj_out.")) else f"model.encoder.{name}"
    for old, new in RENAMES:
        name = re.sub(old, new, name)
    return name


def parameters(graph: Graph) -> dict[str, Tensor]:
    """Float parameters of one graph under the names of `transformers`; linear maps are turned back to (out, in)."""
    found: dict[str, Tensor] = {}
    for name, value in graph.initialisers.items():
        plain = MERGED.sub("", name)
        if value.dtype == np.float32 and re.fullmatch(r"[\w.]+\.(weight|bias)", plain):
            found[rename(plain)] = _tensor(value)
    for module, kind, inputs in graph.users:
        for name in inputs:
            if not module or not name.startswith("onnx::") or name not in graph.initialisers:
                continue
            value = graph.initialisers[name]
            if kind == "MatMul" and value.ndim == 2:
                found[rename(f"{module}.weight")] = _tensor(value.T)
            elif kind in ("Mul", "Add") and value.dtype == np.float32 and value.ndim == 2:  # a group norm: (C, 1)
                found[rename(f"{module}.{'weight' if kind == 'Mul' else 'bias'}")] = _tensor(value).flatten()
    return found


def _tensor(value: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(value, dtype=np.float32, order="C"))


def config_of(state: dict[str, Tensor], decoder: Graph) -> dict[str, Any]:
    """The options of `MoonshineConfig` that belong to these parameters."""
    cache = decoder.inputs.get("past_key_values.0.decoder.key")
    words, wide = state.get("model.decoder.embed_tokens.weight"), state.get("model.encoder.layers.0.mlp.fc1.weight")
    if cache is None or len(cache) != 4 or words is None or wide is None:
        raise CheckpointError(
            "these graphs are no Moonshine model: expected the encoder's layers, the decoder's embedding, and a "
            "decoder with the input past_key_values.0.decoder.key"
        )
    if words.dim() != 2 or wide.dim() != 2:
        raise CheckpointError(f"embedding and fc1 must be matrices, not {tuple(words.shape)} and {tuple(wide.shape)}")
    heads, width = cache[1], words.shape[1]
    frequencies = _frequencies(decoder)
    if heads < 1 or width % heads:
        raise CheckpointError(f"the cache has {heads} heads, which do not divide the width {width}")
    if 2 * len(frequencies) > width // heads:
        raise CheckpointError(f"{len(frequencies)} rotary frequencies for heads of {width // heads} features")
    return {
        "vocab_size": words.shape[0],
        "hidden_size": width,
        "intermediate_size": wide.shape[0],
        "encoder_num_hidden_layers": _layers(state, "encoder"),
        "decoder_num_hidden_layers": _layers(state, "decoder"),
        **{
            f"{side}_num_{kind}": heads
            for side in ("encoder", "decoder")
            for kind in ("attention_heads", "key_value_heads")
        },
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            # `transformers` multiplies and cuts off: half a feature more keeps rounding from losing one
            "partial_rotary_factor": (2 * len(frequencies) + 0.5) / (width // heads),
        },
        "bos_token_id": SOS,
        "decoder_start_token_id": SOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }


def _layers(state: dict[str, Tensor], side: str) -> int:
    pattern = re.compile(rf"model\.{side}\.layers\.(\d{{1,4}})\.")
    found = {int(m[1]) for m in map(pattern.match, state) if m}
    if not found or found != set(range(len(found))):
        raise CheckpointError(f"the {side}'s layers must be numbered from 0 without gaps, found {sorted(found)[:9]}")
    return len(found)


def _frequencies(graph: Graph) -> np.ndarray[Any, Any]:
    """The rotary embedding's frequencies, one for each pair of features."""
    for name, value in graph.initialisers.items():
        if FREQUENCIES.search(MERGED.sub("", name)) and value.dtype == np.float32 and value.size > 1:
            return value.flatten()
    raise CheckpointError("the decoder's graph holds no rotary frequencies (rotary_emb/Cast_1_output_0)")


def build(encoder: Graph, decoder: Graph) -> Any:
    """A float32 `MoonshineForConditionalGeneration` with the parameters of the two graphs."""
    try:
        from transformers import MoonshineConfig, MoonshineForConditionalGeneration
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    state = parameters(encoder) | parameters(decoder)
    model = MoonshineForConditionalGeneration(MoonshineConfig(**config_of(state, decoder)))
    state.setdefault("proj_out.weight", state["model.decoder.embed_tokens.weight"])
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"these weights do not fit a Moonshine model: {str(error).splitlines()[1]}") from error
    if missing or unexpected:
        raise CheckpointError(
            f"these graphs are no Moonshine model: {len(missing)} parameters are missing "
            f"({', '.join(missing[:3])}), {len(unexpected)} unknown ({', '.join(unexpected[:3])})"
        )
    wanted, have = _frequencies(decoder), model.model.decoder.rotary_emb.inv_freq.numpy()
    if wanted.shape != have.shape or not np.allclose(wanted, have, rtol=1e-4):
        raise CheckpointError(f"the rotary frequencies {wanted[:3]} … are not those of base 10000: {have[:3]} …")
    model.eval()  # type: ignore[no-untyped-call]
    return model


def llama_js_tokenizer(path: Path, size: int) -> Any:
    """The tokenizer inside a bundle that holds llama-tokenizer-js, as a `transformers` tokenizer.

    The bundle has two long base64 texts: the pieces, one a line, and the merges, pairs of 16-bit ids in order of rank.

    Args:
        path: The JavaScript file.
        size: Output units of the model; ids beyond the pieces are named <<ST_0>>, <<ST_1>> and so on.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, normalizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    pieces, pairs = _pieces_and_merges(path)
    if len(pieces) > size:
        raise CheckpointError(f"{path} has {len(pieces)} pieces, the model only {size} output units")
    units = [*pieces, *(f"<<ST_{i}>>" for i in range(size - len(pieces)))]
    merges = [(pieces[left], pieces[right]) for left, right in pairs]
    vocabulary = {name: i for i, name in enumerate(units)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=pieces[0], fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = {"unk_token": pieces[0], "bos_token": pieces[SOS], "eos_token": pieces[EOS]}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )


def _pieces_and_merges(path: Path) -> tuple[list[str], list[tuple[int, int]]]:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    blocks: Iterable[str] = BASE64.findall(path.read_text(encoding="utf-8", errors="replace"))
    for text, binary in itertools.pairwise(blocks):
        try:
            pieces = base64.b64decode(text).decode("utf-8").split("\n")
            ids = np.frombuffer(base64.b64decode(binary), dtype="<u2").astype(int).reshape(-1, 2)
        except (binascii.Error, ValueError):
            continue  # two other long texts of the bundle
        if pieces[: EOS + 1] == ["<unk>", "<s>", "</s>"] and ids.max(initial=0) < len(pieces):
            known = set(pieces)
            pairs = [(int(a), int(b)) for a, b in ids if pieces[a] + pieces[b] in known]
            return pieces, pairs
    raise CheckpointError(f"{path} holds no pieces and merges of llama-tokenizer-js")


def convert(encoder: str | Path, decoder: str | Path, tokenizer: str | Path, out: str | Path) -> None:
    """Writes the folder: config.json, model.safetensors, the tokenizer and the feature extractor's settings.

    Args:
        encoder: The encoder's ONNX file.
        decoder: The decoder's, merged: with and without a cache in one graph.
        tokenizer: The package's JavaScript bundle.
        out: The folder to write.
    """
    try:
        from transformers import Wav2Vec2FeatureExtractor
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    model = build(read_graph(Path(encoder)), read_graph(Path(decoder)))
    words = llama_js_tokenizer(Path(tokenizer), model.config.vocab_size)
    model.save_pretrained(out)
    words.save_pretrained(out)
    Wav2Vec2FeatureExtractor(
        feature_size=1, sampling_rate=16_000, padding_value=0.0, do_normalize=False, return_attention_mask=True
    ).save_pretrained(out)  # type: ignore[no-untyped-call]
