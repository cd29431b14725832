"""Models on disk: one safetensors file with the weights and, as JSON in its header, all that is needed to use them.

The header's entry `ilme` is {"version", "kind", "config", "tokens", "tokenizer", "frontend"}. A file is written beside
its place and moved there when complete, so a reader never sees half of one. Pickle is never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ilme import models
from ilme.errors import BadInputError, CheckpointError
from ilme.models.int8 import from_int8, is_int8
from ilme.runtime.configs import config_from_json, config_to_json
from ilme.runtime.tensors import read_header, read_tensors, write_tensors
from ilme.tokens import Tokenizer, Tokens

__all__ = ["Checkpoint", "checkpoint_kind", "load_checkpoint", "load_tokenizer", "save_model"]

VERSION = 1
FILE = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        kind: `rnnt`, `aed` or `lm`.
        model: The network, in evaluation mode.
        tokenizer: Text to ids and back; None if the checkpoint has none.
        frontend: How audio becomes features (a FrontendConfig); None for an LM.
    """

    kind: str
    model: Any
    tokenizer: Any
    frontend: Any


def save_model(
    path: str | Path,
    model: nn.Module,
    tokenizer: Tokenizer | None = None,
    frontend: Any = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Writes a network of ours to `path`, a folder or a .safetensors file.

    Args:
        path: Where to; a folder gets the file model.safetensors.
        model: The network.
        tokenizer: Stored with it.
        frontend: Its FrontendConfig, or the Frontend that holds one.
        dtype: Store the weights as this type, such as torch.float16; None keeps theirs.
    """
    frontend = getattr(frontend, "config", frontend)
    about = {
        "version": VERSION,
        "kind": model.kind,
        "config": config_to_json(model.config),
        "tokens": model.tokens.to_json(),  # type: ignore[union-attr, operator]
        "tokenizer": tokenizer.to_json() if tokenizer is not None else None,  # type: ignore[attr-defined]
        "frontend": frontend.to_json() if frontend is not None else None,
    }
    weights = {
        name: value.to(dtype) if dtype and value.is_floating_point() else value
        for name, value in _unique(model).items()
    }
    file = _file(Path(path), writing=True)
    write_tensors(file, weights, {"ilme": json.dumps(about)})
    return file


def load_checkpoint(path: str | Path, expect: str | None = None, device: torch.device | str = "cpu") -> Checkpoint:
    """Reads what `save_model` wrote.

    Args:
        path: The folder or the file.
        expect: `rnnt`, `aed` or `lm`, if only that will do.
        device: Where the network is put.
    """
    file = _file(Path(path))
    weights, header = read_tensors(file)
    about = _about(file, header, expect)
    if is_int8(header):
        weights = from_int8(weights)
    try:
        config: Any = config_from_json(models.config_class(about["kind"]), about["config"])
        tokens = Tokens.from_json(about["tokens"])
        with torch.random.fork_rng(devices=[]):  # its first weights are drawn, then replaced
            model = models.build(about["kind"], config, tokens)
    except (BadInputError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: its description does not make a model: {error}") from error
    _fill(file, model, weights)
    tokenizer, frontend = _parts(about)
    if about["kind"] != "lm":
        model.attach(tokenizer, frontend)
    return Checkpoint(about["kind"], model.to(device).eval(), tokenizer, frontend)


def checkpoint_kind(path: str | Path) -> str:
    """`rnnt`, `aed` or `lm`: what a checkpoint holds, from its header alone."""
    file = _file(Path(path))
    return str(_about(file, read_header(file), None)["kind"])


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer inside a checkpoint of ours (None if it has none), or a sentencepiece model of its own."""
    from ilme.data.tokenizer import SentencePieceTokenizer

    path = Path(path)
    if path.suffix != ".safetensors" and not path.is_dir():
        return SentencePieceTokenizer.load(path)
    file = _file(path)
    return _parts(_about(file, read_header(file), None))[0]


def _parts(about: Mapping[str, Any]) -> tuple[Any, Any]:
    from ilme.data.features import FrontendConfig
    from ilme.data.tokenizer import SentencePieceTokenizer

    tokenizer = about.get("tokenizer")
    frontend = about.get("frontend")
    return (
        SentencePieceTokenizer.from_json(tokenizer) if tokenizer else None,
        FrontendConfig.from_json(frontend) if frontend else None,
    )


def _about(file: Path, header: Mapping[str, str], expect: str | None) -> dict[str, Any]:
    if "ilme" not in header:
        raise CheckpointError(
            f"{file} is a safetensors file of another program: it has no 'ilme' entry. "
            "Models of others are loaded by folder or hub id: ilme.load_model"
        )
    about: dict[str, Any] = json.loads(header["ilme"])
    if about.get("version") != VERSION:
        raise CheckpointError(
            f"{file} has format version {about.get('version')}, this program reads {VERSION}; update ilme"
        )
    kind = about.get("kind")
    if kind not in models.KINDS:
        raise CheckpointError(f"{file} holds a {kind!r}; known are {', '.join(models.KINDS)}")
    if expect and kind != expect:
        raise CheckpointError(f"{file} holds a {kind!r}, but a {expect!r} is needed here")
    return about


def _fill(file: Path, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    wanted = _unique(model)
    missing, extra = sorted(set(wanted) - set(weights)), sorted(set(weights) - set(wanted))
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which the model does not"
        raise CheckpointError(f"{file} does not fit its own description: it {what}")
    for name, value in wanted.items():
        if value.shape != weights[name].shape:
            raise CheckpointError(
                f"{file}: {name} has shape {tuple(weights[name].shape)}, its description needs {tuple(value.shape)}"
            )
        value.data.copy_(weights[name])


def _unique(model: nn.Module) -> dict[str, Tensor]:
    """The state by name, a tied tensor once."""
    seen: set[int] = set()
    out = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            out[name] = value.detach()
    return out


def _file(path: Path, writing: bool = False) -> Path:
    if path.suffix == ".safetensors" or (path.is_file() and not writing):
        return path
    return path / FILE
