"""Model files with one thing wrong each: refused at once, by name, before anything is allocated for them."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ilme import models
from ilme.adapters.openai_whisper import DIMENSIONS, TiktokenTokenizer, build, find_ranks, read_pt
from ilme.adapters.whisper_cpp import read_ggml
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError, CheckpointError, IlmeError
from ilme.models.checkpoint import load_checkpoint, load_tokenizer, save_model
from ilme.models.int8 import to_int8
from ilme.recogniser.loading import load_model
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.testing import numbered_tokens
from tests.attacks.cases import Case, attacks, check_call

NESTED = "[" * 100_000
JUNK = {
    "a list": "[]",
    "nothing": "null",
    "a number": "1",
    "a text": '"x"',
    "half of it": '{"version": 1',
    "deep": NESTED,
}
NOT_A_SIZE = {
    "negative": -1,
    "huge": 10**9,
    "a text": "12",
    "nothing": None,
    "a half": 2.5,
    "true": True,
    "a list": [1],
}
POISON = {"NaN": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}


# --- checkpoints of ours ----------------------------------------------------------------------------------------------

Parts = tuple[dict[str, Tensor], dict[str, Any]]


@cache
def parts(kind: str) -> Parts:
    """Tensors and description of a tiny checkpoint."""
    torch.manual_seed(0)
    role = "transducer" if kind == "rnnt" else "attention"
    model = models.build(kind, models.preset(kind, "tiny"), numbered_tokens(12, role))
    about = {
        "version": 1,
        "kind": kind,
        "config": json.loads(json.dumps(model.config, default=lambda config: config.__dict__)),
        "tokens": model.tokens.to_json(),
        "tokenizer": None,
        "frontend": FrontendConfig().to_json() if kind != "lm" else None,
    }
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    if kind == "lm":
        weights.pop("output.weight")  # one with the embedding
    return weights, about


def checkpoint(kind: str, damage: Callable[[dict[str, Tensor], dict[str, Any]], Any]) -> Callable[[Path], Path]:
    """Writes the checkpoint after `damage` was done to copies of its tensors and its description."""

    def make(folder: Path) -> Path:
        weights, about = parts(kind)
        weights, about = {k: v.clone() for k, v in weights.items()}, json.loads(json.dumps(about))
        damage(weights, about)
        write_tensors(folder / "model.safetensors", weights, {"ilme": json.dumps(about)})
        return folder / "model.safetensors"

    return make


def put(where: str, value: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    """Another value in the description, by path: config.encoder.hidden."""

    def damage(_: dict[str, Tensor], about: dict[str, Any]) -> None:
        *path, last = where.split(".")
        for name in path:
            about = about[name]
        about[last] = value

    return damage


def poison(number: float) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def damage(weights: dict[str, Tensor], _: dict[str, Any]) -> None:
        weights[sorted(weights)[0]].view(-1)[-1] = number

    return damage


def sizes(data: dict[str, Any], path: str = "config") -> Iterator[str]:
    """The paths of all whole numbers of a config."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from sizes(value, f"{path}.{name}")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{path}.{name}"


def checkpoint_cases() -> Iterator[Case]:
    file = "model.safetensors"
    for kind in models.KINDS:
        first = sorted(parts(kind)[0])[0]
        for name, number in POISON.items():
            words = (file, "is damaged: 1 of the", first, "NaN or infinite")
            yield Case(f"{kind} with {name}", checkpoint(kind, poison(number)), CheckpointError, words)
        for at, path in enumerate(sizes(parts(kind)[1]["config"])):
            for name, value in NOT_A_SIZE.items():
                make, words = (
                    checkpoint(kind, put(path, value)),
                    (file, path.split(".")[-1].replace("time_reduction", "reduc")),
                )
                rare = kind == "lm" or (at + len(name)) % 3 > 0
                yield Case(f"{kind} {path} {name}", make, CheckpointError, words, full=rare)
    # sizes that the file has numbers enough for, and that would still take terabytes
    for path in ("config.embedding", "config.prediction_hidden", "config.joint", "config.encoder.hidden"):
        words = (file, "its description needs")
        yield Case(f"rnnt {path} too wide", checkpoint("rnnt", put(path, 9_000)), CheckpointError, words)
    wrong = [
        ("tokens.pieces", "abc", "pieces must be a list"),
        ("tokens.pieces", [1, 2], "pieces must be a text"),
        ("tokens.pieces", [], "is not an id"),
        ("tokens.blank", 99, "blank=99 is not an id"),
        ("tokens.blank", "0", "blank must be a whole number"),
        ("tokens.blank", None, "needs a token inventory with a blank"),
        ("tokens.eos", True, "eos must be a whole number"),
        ("tokens.more", 1, "no field 'more'"),
        ("tokens", [], "not from a list"),
        ("tokens", None, "not from nothing"),
        ("config", [], "not from a list"),
        ("config", None, "not from nothing"),
        ("config.more", 1, "no field 'more'"),
        ("config.encoder", 5, "encoder must be"),
        ("config.prediction", "gru", "must be one of lstm, stateless"),
        ("config.ctc", "no", "must be true or false"),
        ("config.ctc", True, "lacks 'ctc."),
        ("config.dropout", "much", "must be a number"),
        ("config.dropout", -0.5, "dropout"),
        ("config.encoder.reduce_by", 3, "must be one of"),
        ("kind", "gan", "holds a 'gan'"),
        ("kind", [], "known are"),
        ("kind", "aed", "does not make a model"),
        ("version", 99, "format version 99"),
        ("version", None, "format version None"),
        ("frontend", 5, "cannot be used"),
        ("frontend", {"rate": 0}, "must be positive"),
        ("frontend", {"rate": 2**31 - 1}, "at most 768000"),
        ("frontend", {"mel_bins": 10**9}, "at most 1000"),
        ("frontend", {"stack": 10**9}, "at most 100"),
        ("frontend", {"hop": 1e-9}, "shorter than a sample"),
        ("frontend", {"window": "x"}, "must be a number"),
        ("frontend", {"loud": 1}, "no field 'loud'"),
        ("tokenizer", 5, "cannot be used"),
        ("tokenizer", {"kind": "bpe"}, "'sentencepiece'"),
        ("tokenizer", {"kind": "sentencepiece", "model": "aGVsbG8="}, "no sentencepiece model"),
        ("tokenizer", {"kind": "sentencepiece", "model": 7}, "cannot be used"),
    ]
    for path, value, word in wrong:
        make = checkpoint("rnnt", put(path, value))
        yield Case(f"{path} is {str(value)[:30]}", make, CheckpointError, (word,))
    for path in ("kind", "version", "config", "tokens"):
        yield Case(f"no {path}", checkpoint("aed", lambda _, about, p=path: about.pop(p)), CheckpointError, (file,))
    for name, text in JUNK.items():
        words = (file, "entry 'ilme' of its header,")
        yield Case(f"its description is {name}", header(text), CheckpointError, words)
    first = "output.weight"
    changes: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
        "lacks a tensor": (lambda w: w.pop(first), f"lacks '{first}'"),
        "has one more": (lambda w: w.update(more=torch.zeros(2)), "has 'more', which the model does not"),
        "is transposed": (lambda w: w.update({first: w[first].T.contiguous()}), "its description needs"),
        "is cut": (lambda w: w.update({first: w[first][:3].clone()}), "its description needs"),
        "is of whole numbers": (lambda w: w.update({first: w[first].long()}), "stored as torch.int64"),
        "has no tensors": (lambda w: w.clear(), "must lie between 0 and 0"),
    }
    for name, (change, word) in changes.items():
        make = checkpoint("rnnt", lambda weights, _, change=change: change(weights))
        yield Case(f"it {name}", make, CheckpointError, (file, word))


def header(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_tensors(folder / "model.safetensors", {"x": torch.zeros(1)}, {"ilme": text})
        return folder / "model.safetensors"

    return make


@attacks(list(checkpoint_cases()))
def test_checkpoints(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, load_checkpoint)


@pytest.mark.parametrize("kind", models.KINDS)
def test_without_damage_they_load(kind: str, tmp_path: Path) -> None:
    assert load_checkpoint(checkpoint(kind, lambda *_: None)(tmp_path)).kind == kind


def raw(content: bytes, name: str = "model.safetensors") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def folder_called(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return make


def whole(folder: Path) -> bytes:
    return checkpoint("lm", lambda *_: None)(folder).read_bytes()


def cut(length: float) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        content = whole(folder)
        (folder / "model.safetensors").write_bytes(content[: int(length * len(content))])
        return folder / "model.safetensors"

    return make


NOT_WHOLE = ("model.safetensors", "is not a whole safetensors file", "copy it again")
FILES = [
    *(Case(f"cut at {part:.0%}", cut(part), CheckpointError, NOT_WHOLE) for part in (0, 0.01, 0.1, 0.5, 0.9, 0.999)),
    Case("zeros", raw(bytes(1000)), CheckpointError, NOT_WHOLE),
    Case("a header of 2^64 bytes", raw(b"\xff" * 8 + b"{}"), CheckpointError, NOT_WHOLE),
    Case("a header that is no JSON", raw(struct.pack("<Q", 4) + b"helo"), CheckpointError, NOT_WHOLE),
    Case("a header that is a list", raw(struct.pack("<Q", 2) + b"[]"), CheckpointError, NOT_WHOLE),
    Case("text", raw(b"Dear reader,\n" * 20), CheckpointError, NOT_WHOLE),
    Case("a pickle", raw(pickle.dumps({"a": 1})), CheckpointError, ("can run code and is never loaded",)),
    Case("a zip", raw(b"PK\x03\x04" + bytes(40)), CheckpointError, ("can run code and is never loaded",)),
    Case("a folder", folder_called("model.safetensors"), CheckpointError, ("model.safetensors", "not")),
    Case("a missing file", lambda folder: folder / "no.safetensors", CheckpointError, ("does not exist",)),
    Case("of another program", raw(b"\x02\0\0\0\0\0\0\0{}"), CheckpointError, ("no 'ilme' entry",)),
    Case(
        "offsets outside of the file",
        raw(struct.pack("<Q", 61) + b'{"x":{"dtype":"F32","shape":[99999],"data_offsets":[0,399996]}}'[:61]),
        CheckpointError,
        NOT_WHOLE,
    ),
]


@attacks(FILES)
def test_files_that_are_no_checkpoints(case: Case, tmp_path: Path) -> None:
    for load in (load_checkpoint, load_tokenizer):
        check_call(case, tmp_path, load)
        for path in tmp_path.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()


def in_8_bits(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        source, small = checkpoint("lm", lambda *_: None)(folder), folder / "small.safetensors"
        to_int8(source, small)
        tensors, about = read_tensors(small)
        tensors = {name: value.clone() for name, value in tensors.items()}
        change(tensors)
        write_tensors(small, tensors, about)
        return small

    return make


SCALE = "embedding.weight.scale"
INT8 = [
    Case("no scale", in_8_bits(lambda w: w.pop(SCALE)), CheckpointError, ("embedding.weight in 8 bits", "none")),
    Case("short scale", in_8_bits(lambda w: w.update({SCALE: torch.ones(2)})), CheckpointError, ("there is (2,)",)),
    Case("whole scale", in_8_bits(lambda w: w.update({SCALE: w[SCALE].long()})), CheckpointError, ("torch.int64",)),
    Case("2-D scale", in_8_bits(lambda w: w.update({SCALE: w[SCALE][:, None]})), CheckpointError, ("needs a scale",)),
    *(
        Case(f"{name} scale", in_8_bits(lambda w, v=number: w[SCALE].fill_(v)), CheckpointError, (SCALE, "NaN or inf"))
        for name, number in POISON.items()
    ),
]


@attacks(INT8)
def test_checkpoints_in_8_bits(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, load_checkpoint)


@pytest.mark.parametrize("text", [None, *JUNK.values()], ids=["none", *JUNK])
def test_only_checkpoints_are_stored_in_8_bits(text: str | None, tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(1)}, {} if text is None else {"ilme": text})
    with pytest.raises(CheckpointError, match=r"x\.safetensors, entry 'ilme'"):
        to_int8(tmp_path / "x.safetensors", tmp_path / "small.safetensors")
    assert not (tmp_path / "small.safetensors").exists()


# --- OpenAI's .pt and whisper.cpp's .bin ------------------------------------------------------------------------------

DIMS = dict(zip(DIMENSIONS, (97, 6, 4, 2, 1, 5, 4, 2, 1, 3), strict=True))


@cache
def parameters() -> dict[str, Tensor]:
    """A Whisper of width 4 with one layer on either side, in OpenAI's names."""
    torch.manual_seed(0)
    square, vector = (4, 4), (4,)
    attention = {"query.weight": square, "query.bias": vector, "key.weight": square}
    attention |= {"value.weight": square, "value.bias": vector, "out.weight": square, "out.bias": vector}
    norm = {"weight": vector, "bias": vector}
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.positional_embedding": (6, 4),
        **{"encoder.conv1.weight": (4, 3, 3), "encoder.conv1.bias": vector},
        **{"encoder.conv2.weight": (4, 4, 3), "encoder.conv2.bias": vector},
        **{"decoder.token_embedding.weight": (97, 4), "decoder.positional_embedding": (5, 4)},
        **{f"encoder.ln_post.{k}": v for k, v in norm.items()},
        **{f"decoder.ln.{k}": v for k, v in norm.items()},
    }
    for part, ways in (("encoder", ("attn",)), ("decoder", ("attn", "cross_attn"))):
        for way in ways:
            shapes |= {f"{part}.blocks.0.{way}.{k}": v for k, v in attention.items()}
            shapes |= {f"{part}.blocks.0.{way}_ln.{k}": v for k, v in norm.items()}
        shapes |= {f"{part}.blocks.0.mlp_ln.{k}": v for k, v in norm.items()}
        shapes |= {f"{part}.blocks.0.mlp.0.weight": (16, 4), f"{part}.blocks.0.mlp.0.bias": (16,)}
        shapes |= {f"{part}.blocks.0.mlp.2.weight": (4, 16), f"{part}.blocks.0.mlp.2.bias": vector}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def pt(change: Callable[[dict[str, Any], dict[str, Any]], Any] = lambda *_: None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        dims, tensors = dict(DIMS), {name: value.clone() for name, value in parameters().items()}
        change(dims, tensors)
        torch.save({"dims": dims, "model_state_dict": tensors}, folder / "w.pt")
        return folder / "w.pt"

    return make


def saved(thing: Any, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        torch.save(thing, folder / "w.pt", **options)
        return folder / "w.pt"

    return make


class Runs:
    """Unpickled, it would call a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def packed(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "w.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w/data.pkl", bytes(10_000_000))
    return folder / "w.pt"


EMBEDDING = "decoder.token_embedding.weight"
NEVER_LOADED = ("w.pt cannot be read as weights", "could run code", "get it again")


def pt_cases() -> Iterator[Case]:
    for name in DIMENSIONS:
        for what, value in (NOT_A_SIZE | {"zero": 0, "one too many": DIMS[name] + 1}).items():
            words = ("w.pt is damaged", name)
            yield Case(f"{name} is {what}", pt(lambda d, _, n=name, v=value: d.update({n: v})), CheckpointError, words)
        yield Case(f"no {name}", pt(lambda d, _, n=name: d.pop(n)), CheckpointError, ("w.pt is damaged", name))
    for what, number in POISON.items():
        make = pt(lambda _, p, v=number: p[EMBEDDING].view(-1).__setitem__(5, v))
        yield Case(what, make, CheckpointError, ("w.pt is damaged", EMBEDDING, "NaN or infinite"))
    things = {
        "a text": "x", "a number": 1.5, "a list": [1.0], "nothing": None, "sparse": torch.eye(97).to_sparse(),
        "repeated": torch.zeros(1).expand(10**6, 10**6),
    }  # fmt: skip
    for what, value in things.items():
        make = pt(lambda _, p, v=value: p.update({EMBEDDING: v}))
        yield Case(f"a parameter is {what}", make, CheckpointError, ("w.pt is damaged", EMBEDDING))
    for dtype in (torch.int64, torch.bool, torch.uint8):
        make = pt(lambda _, p, t=dtype: p.update({EMBEDDING: torch.ones(97, 4).to(t)}))
        yield Case(f"a parameter of {dtype}", make, CheckpointError, ("w.pt", EMBEDDING, str(dtype)))
    yield Case("a parameter without a name", pt(lambda _, p: p.update({5: torch.ones(1)})), CheckpointError, ("'5'",))
    calls = {
        "os.system": (os.system, "exit 1"),
        "eval": (eval, "1/0"),
        "exec": (exec, "x = 1"),
        "open": (open, "x", "w"),
    }
    for name, (function, *arguments) in calls.items():
        evil = {"dims": DIMS, "model_state_dict": {"x": Runs(function, *arguments)}}
        yield Case(f"it would call {name}", saved(evil), CheckpointError, NEVER_LOADED)
        old = saved(evil, _use_new_zipfile_serialization=False)
        yield Case(f"it would call {name}, in the old format", old, CheckpointError, NEVER_LOADED)
    yield Case("a plain pickle", raw(pickle.dumps({"a": 1}, 2), "w.pt"), CheckpointError, NEVER_LOADED)
    yield Case("a newer pickle", raw(pickle.dumps({"a": 1}, 5), "w.pt"), CheckpointError, ("no file of torch's",))
    yield Case("no bytes", raw(b"", "w.pt"), CheckpointError, ("w.pt is empty",))
    yield Case("text", raw(b"Dear reader,\n", "w.pt"), CheckpointError, ("w.pt", "no file of torch's"))
    yield Case("half a zip", raw(b"PK\x03\x04" + bytes(50), "w.pt"), CheckpointError, ("w.pt cannot be read",))
    yield Case("an empty zip", raw(b"PK\x05\x06" + bytes(18), "w.pt"), CheckpointError, NEVER_LOADED)
    yield Case("packed entries", packed, CheckpointError, ("packed entry 'w/data.pkl'",))
    yield Case("a folder", folder_called("w.pt"), CheckpointError, ("w.pt is a folder",))
    yield Case("a missing file", lambda folder: folder / "w.pt", CheckpointError, ("no such file",))
    for name, thing in {"a list": [1], "a tensor": torch.ones(3), "a number": 5, "another model": {"a": 1}}.items():
        yield Case(f"{name}", saved(thing), CheckpointError, ("w.pt holds no OpenAI Whisper model",))
    for name, thing in {"a list": [], "nothing": None, "a tensor": torch.ones(3)}.items():
        for key in ("dims", "model_state_dict"):
            other = {"dims": DIMS, "model_state_dict": {}} | {key: thing}
            yield Case(f"{key} is {name}", saved(other), CheckpointError, ("must be mappings",))


@attacks(list(pt_cases()))
def test_pt_files(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = check_call(case, tmp_path, read_pt)
    assert ("weights_only" not in str(error) and error.__cause__ is None) or "weights_only" not in str(error.__cause__)
    assert not (tmp_path / "x").exists()


def ggml(change: Callable[[dict[str, Any]], Any] = lambda _: None) -> Callable[[Path], Path]:
    """Writes w.bin; `change` gets its parts: magic, sizes, filters, words, and for each tensor a head and data."""

    def make(folder: Path) -> Path:
        tensors = []
        for name, value in parameters().items():
            head = [value.ndim, len(name), 0, *reversed(value.shape)]
            tensors.append([head, name.encode(), value.numpy().tobytes()])
        parts = {"magic": 0x67676D6C, "sizes": [*DIMS.values(), 0], "filters": [0, 0], "words": 2, "lengths": [1, 1]}
        parts["tensors"] = tensors
        change(parts)
        content = struct.pack("<I", parts["magic"]) + np.array(parts["sizes"], "<i4").tobytes()
        content += np.array([*parts["filters"], parts["words"]], "<i4").tobytes()
        content += b"".join(struct.pack("<i", n) + b"a" for n in parts["lengths"])
        content += b"".join(np.array(head, "<i4").tobytes() + name + data for head, name, data in parts["tensors"])
        (folder / "w.bin").write_bytes(content)
        return folder / "w.bin"

    return make


def ggml_cut(keep: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = ggml()(folder)
        path.write_bytes(path.read_bytes()[:keep])
        return path

    return make


def of_first(at: int, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda parts: parts["tensors"][0][0].__setitem__(at, value)


def ggml_cases() -> Iterator[Case]:
    for at, name in enumerate(DIMENSIONS):
        for value in (-1, 0, DIMS[name] + 1, 2**31 - 1, -(2**31)):
            make = ggml(lambda p, i=at, v=value: p["sizes"].__setitem__(i, v))
            yield Case(f"{name} is {value}", make, CheckpointError, ("w.bin is damaged", name))
    largest = 2**31 - 1
    for name, filters in {"negative": [-1, 5], "huge": [largest, largest], "both negative": [-5, -5]}.items():
        make = ggml(lambda p, v=filters: p.update(filters=v))
        yield Case(f"{name} filters", make, CheckpointError, ("w.bin is", "damaged"))
    for value in (-1, largest, 5):
        yield Case(f"{value} words", ggml(lambda p, v=value: p.update(words=v)), CheckpointError, ("w.bin is",))
        lengths = ggml(lambda p, v=value: p.update(lengths=[v, 1]))
        yield Case(f"a word of {value} bytes", lengths, CheckpointError, ("w.bin",))
    for value in (-1, 0, 5, largest):
        yield Case(f"a tensor of rank {value}", ggml(of_first(0, value)), CheckpointError, ("w.bin is damaged",))
    for value in (-1, largest):
        yield Case(f"a name of {value} bytes", ggml(of_first(1, value)), CheckpointError, ("w.bin is", "damaged"))
        yield Case(f"a tensor of {value} rows", ggml(of_first(3, value)), CheckpointError, ("w.bin is", "damaged"))
    yield Case("a tensor without rows", ggml(of_first(4, 0)), CheckpointError, ("has the shape (0, 4)",))
    for value in (-1, 2, 8, largest):
        yield Case(f"numbers of type {value}", ggml(of_first(2, value)), CheckpointError, (f"quantised type {value}",))
    name = ggml(lambda p: p["tensors"][0].__setitem__(1, b"\xff" * len(p["tensors"][0][1])))
    yield Case("a name that is no text", name, CheckpointError, ("name of a tensor is no text",))
    twice = ggml(lambda p: p["tensors"].append(p["tensors"][0]))
    yield Case("a tensor twice", twice, CheckpointError, ("stands in it twice",))
    for what, number in POISON.items():
        data = np.full((6, 4), number, "<f4").tobytes()
        make = ggml(lambda p, d=data: p["tensors"][0].__setitem__(2, d))
        yield Case(what, make, CheckpointError, ("w.bin is damaged", "24 of the 24", "encoder.positional_embedding"))
    yield Case("another magic number", ggml(lambda p: p.update(magic=1)), CheckpointError, ("no whisper.cpp model",))
    for keep in (0, 3, 4, 20, 50, 60, 70, 80, 100, 300, 1000):
        yield Case(f"cut after {keep} bytes", ggml_cut(keep), CheckpointError, ("w.bin",))
    yield Case("a folder", folder_called("w.bin"), CheckpointError, ("w.bin is a folder",))


@attacks(list(ggml_cases()))
def test_ggml_files(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, read_ggml)


def test_without_damage_they_are_read(tmp_path: Path) -> None:
    for read, make in ((read_pt, pt()), (read_ggml, ggml())):
        dims, tensors = read(make(tmp_path))
        assert dims == DIMS and all(torch.equal(tensors[name], value) for name, value in parameters().items())


BUILDS = [
    Case("97 units", lambda _: (DIMS, parameters()), CheckpointError, ("51864 units, not 97",), full=True),
    *(
        Case(name, lambda _, c=change: (DIMS | {"n_vocab": 51864}, full_size(c)), CheckpointError, (word,), full=True)
        for name, (change, word) in {
            "a parameter is missing": (lambda p: p.pop("decoder.ln.bias"), "1 parameters are missing"),
            "one too many": (lambda p: p.update(more=torch.zeros(1)), "1 unknown (more)"),
            "no embedding": (lambda p: p.pop(EMBEDDING), "are missing"),
            "another shape": (lambda p: p.update({"decoder.ln.bias": torch.zeros(5)}), "has shape (5,)"),
            "another rank": (lambda p: p.update({"decoder.ln.bias": torch.zeros(2, 2)}), "has shape (2, 2)"),
            "a row too few": (lambda p: p.update({EMBEDDING: p[EMBEDDING][1:]}), "has shape (51863, 4)"),
        }.items()
    ),
]


def full_size(change: Callable[[dict[str, Tensor]], Any]) -> dict[str, Tensor]:
    tensors = dict(parameters()) | {EMBEDDING: torch.zeros(51864, 4)}
    change(tensors)
    return tensors


@attacks(BUILDS)
def test_weights_that_make_no_whisper(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    check_call(case, tmp_path, lambda given: build(*given))


RANKS = {
    "words": ("one two three\n", "line 1: expected a base64 piece"),
    "no base64": ("!!!! 0\n", "line 1: expected"),
    "no number": ("IQ== x\n", "line 1: expected"),
    "a gap": ("IQ== 0\nIg== 2\n", "are not 0 to 1, each once"),
    "a rank twice": ("IQ== 0\nIg== 0\n", "each once"),
    "negative": ("IQ== -1\n", "each once"),
    "a piece twice": ("IQ== 0\nIQ== 1\n", "each once"),
    "nothing twice": ("IQ== 0\n= 1\n= 2\n", "each once"),
    "not ASCII": ("ä 0\n", "not plain text"),
    "too few": ("IQ== 0\n", "gives 1610 tokens, the model has 51864"),
    "a password file": ("root:x:0:0:root:/root:/bin/bash\n", "line 1: expected"),
    "empty": ("", "the model has 51864"),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_are_never_quoted(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    text, word = RANKS[name]
    (tmp_path / "gpt2.tiktoken").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=word) as caught:
        TiktokenTokenizer(tmp_path / "gpt2.tiktoken", 51864)
    assert "gpt2.tiktoken" in str(caught.value) and not (text.strip() and text.split()[0] in str(caught.value))


def test_ranks_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "gpt2.tiktoken").mkdir()
    for given in (tmp_path / "gpt2.tiktoken", tmp_path / "absent", Path("/dev/zero")):
        with pytest.raises(BadInputError, match="no such file of byte-pair ranks"):
            find_ranks(False, given)


# --- folders of transformers ------------------------------------------------------------------------------------------


@cache
def hub_files() -> dict[str, bytes]:
    """The files of a tiny Whisper in transformers' format."""
    import tempfile

    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

    from tests.adapters.tiny import WhisperWords, tiny_whisper

    words = WhisperWords()
    inner = Tokenizer(WordLevel({p: i for i, p in enumerate(words.tokens.pieces)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as name:
        tiny_whisper().model.save_pretrained(name)
        PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(name)
        WhisperFeatureExtractor(feature_size=80, chunk_length=1).save_pretrained(name)
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def hub(change: Callable[[dict[str, bytes]], Any] = lambda _: None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = dict(hub_files())
        change(files)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return make


def configured(**values: Any) -> Callable[[Path], Path]:
    def change(files: dict[str, bytes]) -> None:
        files["config.json"] = json.dumps(json.loads(files["config.json"]) | values).encode()

    return hub(change)


def weighted(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        hub()(folder)
        tensors, about = read_tensors(folder / "model.safetensors")
        tensors = {name: value.clone() for name, value in tensors.items()}
        change(tensors)
        write_tensors(folder / "model.safetensors", tensors, about)
        return folder

    return make


HUB_SIZES = ("d_model", "encoder_layers", "decoder_layers", "vocab_size", "encoder_ffn_dim", "decoder_attention_heads")
HUB_VALUES = NOT_A_SIZE | {"zero": 0, "seven": 7}
ID_VALUES = {k: v for k, v in NOT_A_SIZE.items() if k != "a half"}


def hub_cases() -> Iterator[Case]:
    for name, text in JUNK.items():
        make = hub(lambda files, t=text: files.update({"config.json": t.encode()}))
        yield Case(
            f"config.json is {name}", make, CheckpointError, ("config.json", "JSON" if name != "deep" else "deeply")
        )
    for field in (*HUB_SIZES, "num_mel_bins", "max_source_positions", "max_target_positions"):
        for name, value in HUB_VALUES.items():
            if (field, name) != ("d_model", "seven"):
                yield Case(f"{field} is {name}", configured(**{field: value}), IlmeError, full=True)
    yield Case("layers without end", configured(encoder_layers=10**9), CheckpointError, ("encoder_layers=1000000000",))
    for field in ("eos_token_id", "decoder_start_token_id"):
        for name, value in ID_VALUES.items():
            yield Case(f"{field} is {name}", configured(**{field: value}), IlmeError, full=True)
    yield Case("another end", configured(eos_token_id=7), BadInputError, ("ends with id 7", "<|endoftext|> is id 40"))
    bias = "model.decoder.layer_norm.bias"
    for name, number in POISON.items():
        make = weighted(lambda w, v=number: w[bias].fill_(v))
        yield Case(name, make, CheckpointError, ("is damaged: 16 of the 16", bias))
    yield Case("a missing weight", weighted(lambda w: w.pop(bias)), CheckpointError, ("1 of its weights", bias))
    yield Case("a short weight", weighted(lambda w: w.update({bias: torch.ones(3)})), CheckpointError, full=True)
    for name in ("model.safetensors", "tokenizer.json", "preprocessor_config.json"):
        yield Case(f"no {name}", hub(lambda f, n=name: f.pop(n, 0)), IlmeError, full=True)
        for what, content in {"empty": b"", "text": b"Dear reader", "deep": NESTED.encode(), "a list": b"[]"}.items():
            make = hub(lambda f, n=name, c=content: f.update({n: c}))
            yield Case(f"{name} is {what}", make, IlmeError, full=True)


@attacks(list(hub_cases()))
def test_folders_of_transformers(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    error = check_call(case, tmp_path, lambda folder: load_model(str(folder)))
    assert ("trust_remote_code" not in str(error) and str(tmp_path) in str(error)) or isinstance(error, BadInputError)


def test_without_damage_the_folder_loads(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert load_model(str(hub()(tmp_path))).kind == "whisper"


# --- who may read what was written ------------------------------------------------------------------------------------


def test_the_umask_says_who_may_read(tmp_path: Path) -> None:
    model = models.build("lm", models.preset("lm", "tiny"), numbered_tokens(12, "attention"))
    before = os.umask(0o027)
    try:
        save_model(tmp_path, model)
        to_int8(tmp_path / "model.safetensors", tmp_path / "small.safetensors")
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in tmp_path.iterdir()] == [0o640, 0o640]
