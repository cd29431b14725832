"""Models on disk: one safetensors file with the weights and, as JSON in its header, all that is needed to use them.

The header's entry `ilme` is {"version", "kind", "config", "tokens", "tokenizer", "frontend"}. A file is written beside
its place and moved there when complete, so a reader never sees half of one. Pickle is never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ilme import models
from ilme.errors import BadInputError, CheckpointError
from ilme.models.int8 import from_int8, is_int8
from ilme.runtime.configs import config_from_json, config_to_json, json_object
from ilme.runtime.tensors import check_finite, read_header, read_tensors, write_tensors
from ilme.tokens import Tokenizer, Tokens

__all__ = ["Checkpoint", "checkpoint_kind", "load_checkpoint", "load_tokenizer", "save_model"]

VERSION = 1
FILE = "model.safetensors"
_MOST = {"positions": 100_000, "time_reduction": 1000}  # sizes that no weights show


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
    check_finite(file, weights)
    if is_int8(header):
        weights = from_int8(weights, file)
    tokenizer, frontend = _parts(file, about)
    try:
        config: Any = config_from_json(models.config_class(about["kind"]), about["config"])
        tokens = config_from_json(Tokens, about["tokens"])
        _check_sizes(config, tokens, weights)
        with torch.device("meta"), _NothingDrawn():  # without memory, until it is known that the weights fill it
            _check_fit(file, models.build(about["kind"], _shape_alone(config), tokens), weights)
        with torch.random.fork_rng(devices=[]):  # its first weights are drawn, then replaced
            model = models.build(about["kind"], config, tokens)
    except CheckpointError:
        raise
    except (BadInputError, KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{file}: its description does not make a model: {error}") from error
    for name, value in _unique(model).items():
        value.data.copy_(weights[name])
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
    return _parts(file, _about(file, read_header(file), None))[0]


def _parts(file: Path, about: Mapping[str, Any]) -> tuple[Any, Any]:
    from ilme.data.features import FrontendConfig
    from ilme.data.tokenizer import SentencePieceTokenizer

    tokenizer = about.get("tokenizer")
    frontend = about.get("frontend")
    try:
        return (
            SentencePieceTokenizer.from_json(tokenizer) if tokenizer else None,
            _frontend(config_from_json(FrontendConfig, frontend)) if frontend else None,
        )
    except (BadInputError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: its tokenizer or frontend cannot be used: {error}") from error


def _frontend(config: Any) -> Any:
    """The frontend, if it is one that ears could use: its filters would otherwise take any amount of memory."""
    for name, most in {"rate": 768_000, "mel_bins": 1000, "window": 10, "hop": 10, "stack": 100, "stride": 100}.items():
        if getattr(config, name) > most:
            raise BadInputError(f"{name}={getattr(config, name)} of the frontend must be at most {most}")
    if min(config.window_samples, config.hop_samples) < 1:
        raise BadInputError(f"window={config.window} and hop={config.hop} of the frontend are shorter than a sample")
    return config


def _about(file: Path, header: Mapping[str, str], expect: str | None) -> dict[str, Any]:
    if "ilme" not in header:
        raise CheckpointError(
            f"{file} is a safetensors file of another program: it has no 'ilme' entry. "
            "Models of others are loaded by folder or hub id: ilme.load_model"
        )
    about = json_object(header["ilme"], f"{file}, entry 'ilme' of its header,")
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


def _check_sizes(config: Any, tokens: Tokens, weights: Mapping[str, Tensor]) -> None:
    """No size of a description is larger than its file can hold: a network is built from it, layer by layer."""
    numbers = max([len(tokens), 10_000, *(value.numel() for value in weights.values())])
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            _check_sizes(value, tokens, weights)
        elif isinstance(value, int):
            most = len(weights) if field.name.endswith("layers") else _MOST.get(field.name, numbers)
            if not 0 <= value <= most:
                raise BadInputError(f"{field.name}={value} must lie between 0 and {most}, as its weights have it")
        elif isinstance(value, float) and not 0 <= value <= numbers:
            raise BadInputError(f"{field.name}={value} must be a finite number that is not negative")


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the first weights: on the meta device they need imports of several seconds, for no numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.eye:
            return torch.empty(args[0], args[-1], **kwargs)
        name = getattr(func, "__name__", "").rstrip("_")
        if name.endswith(("normal", "uniform")) or (name in ("add", "mul", "div") and isinstance(args[0], Tensor)):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _shape_alone(config: Any) -> Any:
    """The config of a network of the same shape whose first weights need no numbers to be computed from."""
    return replace(config, pace=0.0) if getattr(config, "pace", 0.0) else config


def _check_fit(file: Path, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
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
        if value.is_floating_point() != weights[name].is_floating_point():
            raise CheckpointError(f"{file}: {name} is stored as {weights[name].dtype}, which are no weights")


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
