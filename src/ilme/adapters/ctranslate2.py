"""Whisper weights in a folder of CTranslate2, the format of faster-whisper; its int8 and int16 weights too.

The folder has `model.bin` and, as a rule, `tokenizer.json`. In model.bin, little-endian: the version of the format, the
name and revision of the network, then for each variable its name, shape, type and numbers, then pairs of names that
share a variable. A text is its length in 16 bits, with the zero byte at its end. Of a quantised weight q the file holds
a scale s for each row, or for the whole: the weight is q / s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ilme.adapters.binary_file import BinaryFile
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer, TokenizerFile
from ilme.adapters.openai_whisper import ENGLISH_ONLY, TiktokenTokenizer, check_dims, find_ranks
from ilme.adapters.whisper import WhisperTokenizer
from ilme.errors import CheckpointError

__all__ = ["is_ctranslate2", "read_ctranslate2", "read_tokenizer"]

WEIGHTS = "model.bin"
OLDEST, NEWEST = 4, 6  # versions of the format
MOST_VARIABLES, MOST_DIMENSIONS = 100_000, 4
TYPES = (
    torch.float32,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.float16,
    torch.bfloat16,
)  # in the order of their ids
# What the file says of the network beside its weights, where Whisper has one value only.
FIXED = {"decoder/pre_norm": 1, "decoder/scale_embeddings": 0, "decoder/alibi": 0, "decoder/activation": 3}
# CTranslate2's name of each layer and OpenAI's.
RENAMES = (
    (r"/layer_(\d+)/", r"/blocks/\1/"),
    (r"/self_attention/layer_norm/", "/attn_ln/"),
    (r"/attention/layer_norm/", "/cross_attn_ln/"),
    (r"/ffn/layer_norm/", "/mlp_ln/"),
    (r"/self_attention/", "/attn/"),
    (r"/attention/", "/cross_attn/"),
    (r"/ffn/linear_0/", "/mlp/0/"),
    (r"/ffn/linear_1/", "/mlp/2/"),
    (r"^encoder/layer_norm/", "encoder/ln_post/"),
    (r"^decoder/layer_norm/", "decoder/ln/"),
    (r"/position_encodings/encodings$", "/positional_embedding"),
    (r"/embeddings/", "/token_embedding/"),
    (r"/gamma$", "/weight"),
    (r"/beta$", "/bias"),
)
# Products that CTranslate2 makes at once, in the order of their rows.
JOINED = {
    "/attn/linear_0/": ("query", "key", "value"),
    "/attn/linear_1/": ("out",),
    "/cross_attn/linear_0/": ("query",),
    "/cross_attn/linear_1/": ("key", "value"),
    "/cross_attn/linear_2/": ("out",),
}


def is_ctranslate2(name: str | Path) -> bool:
    """Whether it is a folder with a file of CTranslate2's in it."""
    file = Path(name) / WEIGHTS
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        version = int.from_bytes(stream.read(4), "little")
    return version <= 100  # what torch or ggml writes has another beginning


def read_ctranslate2(folder: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The dimensions and the parameters, in float32 under OpenAI's names."""
    path = folder / WEIGHTS
    variables = _variables(path)
    for name, wanted in FIXED.items():
        found = variables.get(name)
        if found is not None and (found.numel() != 1 or int(found) != wanted):
            raise CheckpointError(f"{path} is no Whisper model: {name} is {str(found.tolist())[:40]}, not {wanted}")
    parameters: dict[str, Tensor] = {}
    for name, value in variables.items():
        if value.ndim and not name.endswith("_scale") and not name.startswith("decoder/alignment"):
            parameters |= _parts(path, name, _dequantised(path, name, value, variables.get(f"{name}_scale")))
    dims = _dimensions(path, variables, parameters)
    check_dims(path, dims, parameters)
    return dims, parameters


def read_tokenizer(folder: Path, size: int, ranks: Path | None = None) -> WhisperTokenizer:
    """The folder's tokenizer.json; without one, the byte-pair ranks that are given or lie beside it."""
    multilingual = size > ENGLISH_ONLY
    if ranks is None and (folder / "tokenizer.json").is_file():
        end = 50257 if multilingual else 50256
        return HuggingFaceTokenizer(TokenizerFile(folder / "tokenizer.json"), size, end + 1, end, lead=" ")
    return TiktokenTokenizer(find_ranks(multilingual, ranks, beside=folder / WEIGHTS), size)


def _variables(path: Path) -> dict[str, Tensor]:
    with BinaryFile.opened(path, "a folder of CTranslate2") as file:
        (version,) = file.numbers("<I")
        if not OLDEST <= version <= NEWEST:
            raise CheckpointError(
                f"{path} has version {version} of CTranslate2's format, and {OLDEST} to {NEWEST} can be read; convert "
                "the model again with a version of CTranslate2 from 2.18 to 4"
            )
        network, _ = _text(file), file.numbers("<I")
        if network != "WhisperSpec":
            raise CheckpointError(f"{path} holds a {network[:40]!r} of CTranslate2; Whisper can be read")
        variables: dict[str, Tensor] = {}
        for _ in range(_count(file, "variables")):
            name, value = _variable(file)
            if name in variables:
                raise CheckpointError(f"{path} is damaged: the variable {name} stands in it twice")
            variables[name] = value
        for _ in range(_count(file, "aliases")):
            alias, name = _text(file), _text(file)
            if name not in variables or alias in variables:
                raise CheckpointError(f"{path} is damaged: {alias[:80]!r} is to be {name[:80]!r}")
            # The output layer is the embedding, which is what Whisper has: nothing is to be read twice.
        if file.left:
            raise CheckpointError(f"{path} is damaged: {file.left} bytes follow its end")
    return variables


def _variable(file: BinaryFile) -> tuple[str, Tensor]:
    name = _text(file)
    (rank,) = file.numbers("<B")
    if rank > MOST_DIMENSIONS:
        raise CheckpointError(f"{file.path} is damaged: {name[:80]!r} has {rank} dimensions")
    shape = file.numbers(f"<{rank}I")
    kind, size = file.numbers("<BI")
    if kind >= len(TYPES):
        raise CheckpointError(f"{file.path}: {name[:80]!r} has the type {kind}, which is not known here")
    if size != math.prod(shape) * TYPES[kind].itemsize or not size:
        raise CheckpointError(f"{file.path} is damaged: {name[:80]!r} of shape {shape} has {size} bytes")
    return name, torch.frombuffer(bytearray(file.read(size)), dtype=TYPES[kind]).reshape(shape)


def _text(file: BinaryFile) -> str:
    return file.text(*file.numbers("<H")).rstrip("\0")


def _count(file: BinaryFile, what: str) -> int:
    (count,) = file.numbers("<I")
    if count > MOST_VARIABLES:
        raise CheckpointError(f"{file.path} is damaged: it is to hold {count} {what}")
    return int(count)


def _dequantised(path: Path, name: str, value: Tensor, scale: Tensor | None) -> Tensor:
    """q / s, row by row; what is not quantised as it is, in float32."""
    if value.is_floating_point():
        return value.float()
    rows = (len(value),)
    if scale is None or not scale.is_floating_point() or tuple(scale.shape) not in ((), (1,), rows):
        raise CheckpointError(f"{path} is damaged: {name} is quantised, and its scale is missing or of another shape")
    if not bool((scale > 0).all()):
        raise CheckpointError(f"{path} is damaged: {name} has a scale that is not positive")
    return value.float() / (scale.float().view(-1, *[1] * (value.ndim - 1)))


def _parts(path: Path, name: str, value: Tensor) -> dict[str, Tensor]:
    """A variable of CTranslate2's under OpenAI's name, products that were joined taken apart."""
    for old, new in RENAMES:
        name = re.sub(old, new, name)
    joined = next((key for key in JOINED if key in name), None)
    if joined is None:
        return {name.replace("/", "."): value}
    roles = JOINED[joined]
    if len(value) % len(roles):
        raise CheckpointError(f"{path} is damaged: {name} has {len(value)} rows for {len(roles)} products")
    block = joined.split("/")[1]
    found = {
        name.replace(joined, f"/{block}/{role}/").replace("/", "."): rows
        for role, rows in zip(roles, value.chunk(len(roles)), strict=True)
    }
    for key in [key for key in found if key.endswith(".key.bias")]:
        if bool(found.pop(key).any()):  # Whisper's keys have no bias, CTranslate2's products all have
            raise CheckpointError(f"{path} is no Whisper model: {key} is not zero")
    return found


def _dimensions(path: Path, variables: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, int]:
    needed = {
        "embedding": "decoder.token_embedding.weight",
        "labels": "decoder.positional_embedding",
        "frames": "encoder.positional_embedding",
        "convolution": "encoder.conv1.weight",
    }
    try:
        found = {what: parameters[name].shape for what, name in needed.items()}
        heads = {part: int(variables[f"{part}/num_heads"]) for part in ("encoder", "decoder")}
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} is no whole Whisper model: {error} is missing or no number") from None
    if any(len(found[what]) != (3 if what == "convolution" else 2) for what in found):
        raise CheckpointError(f"{path} is damaged: its embeddings or convolutions have the wrong number of dimensions")
    layers = {
        part: len({name.split(".")[2] for name in parameters if name.startswith(f"{part}.blocks.")}) for part in heads
    }
    return {
        "n_vocab": found["embedding"][0],
        "n_audio_ctx": found["frames"][0],
        "n_audio_state": found["frames"][1],
        "n_audio_head": heads["encoder"],
        "n_audio_layer": layers["encoder"],
        "n_text_ctx": found["labels"][0],
        "n_text_state": found["embedding"][1],
        "n_text_head": heads["decoder"],
        "n_text_layer": layers["decoder"],
        "n_mels": found["convolution"][1],
    }
