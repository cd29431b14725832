"""Models and LMs of `transformers`, by hub id or folder. Only safetensors are read, and no remote code is ever run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from ilme.adapters.families import FAMILIES
from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.runtime.configs import read_json_object
from ilme.runtime.hub import check_reachable
from ilme.runtime.tensors import check_finite, read_shapes

__all__ = [
    "CLASSES",
    "adapter_class",
    "check_id",
    "extractor_settings",
    "hub_model",
    "hub_parts",
    "hub_tokenizer",
    "model_type",
    "reason",
]

CLASSES = {family.kind: family.adapter for family in FAMILIES if family.adapter}
SIZES = (
    "layers",
    "heads",
    "d_model",
    "_dim",
    "_size",
    "positions",
    "position_embeddings",
    "bins",
)  # how fields are called that count units
EXTRACTORS = ("preprocessor_config.json", "processor_config.json")
LONGEST = 300  # letters of another library's message
SMALL = 100_000  # a number in a config that needs no weights, such as positions that are computed


def adapter_class(name: str) -> Any:
    """The adapter for a hub id or folder."""
    kind = model_type(name)
    if kind not in CLASSES:
        known = ", ".join(sorted(CLASSES))
        raise BadInputError(f"{name} is a model of type {kind!r}; this package adapts: {known}")
    module, attribute = CLASSES[kind].split(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def model_type(name: str) -> str:
    """`model_type` of a hub id's or a folder's config.json."""
    folder = Path(name)
    if folder.is_dir():
        file = folder / "config.json"
        if not file.exists():
            raise CheckpointError(f"{folder} has no config.json; a model folder has config.json and model.safetensors")
        return str(read_json_object(file).get("model_type", "unknown"))[:80]
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    check_reachable(name)
    try:
        return str(AutoConfig.from_pretrained(name, trust_remote_code=False).model_type)
    except Exception as error:
        raise CheckpointError(
            f"{name} is neither a local model nor a hub id that can be reached: {reason(error)}"
        ) from error


def hub_parts(name: str, model_class: str, device: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The model, tokenizer and feature extractor of a hub id or folder of an attention model."""
    model, tokenizer = hub_model(name, model_class, device, dtype), hub_tokenizer(name)
    for field in ("decoder_start_token_id", "eos_token_id"):
        check_id(name, model.config, field)
    return model, tokenizer, hub_extractor(name)


def hub_model(name: str, model_class: str, device: str, dtype: torch.dtype) -> Any:
    """A model of a hub id or folder, from safetensors alone."""
    transformers = _transformers()
    if Path(name).is_dir():
        _check_sizes(Path(name))
    try:
        model, info = getattr(transformers, model_class).from_pretrained(
            name, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # transformers raises many kinds for damaged files; the cause stays attached
        raise CheckpointError(f"{name} cannot be loaded: {_weights_reason(name, error)}") from error
    if missing := sorted(info["missing_keys"]):  # transformers would draw them at random, with a warning
        raise CheckpointError(f"{name} is not whole: {len(missing)} of its weights are missing, such as {missing[0]}")
    if unused := sorted(key for key in info["unexpected_keys"] if ".layers." in key):
        raise CheckpointError(f"{name}: config.json has fewer layers than the weights, which have {unused[0]}")
    check_finite(name, model.state_dict())
    return model.to(device)


def hub_tokenizer(name: str) -> Any:
    """The tokenizer of a hub id or folder."""
    transformers = _transformers()
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(f"the tokenizer of {name} cannot be loaded: {reason(error)}") from error


def hub_extractor(name: str) -> Any:
    """The feature extractor of a hub id or folder."""
    transformers = _transformers()
    try:
        return transformers.AutoFeatureExtractor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        why = _extractor_reason(name, error)
        raise CheckpointError(f"the feature extractor of {name} cannot be loaded: {why}") from error


def extractor_settings(name: str) -> dict[str, Any]:
    """What a hub id or folder says of its feature extractor, for those that are made here."""
    transformers = _transformers()
    try:
        return dict(transformers.FeatureExtractionMixin.get_feature_extractor_dict(name)[0])
    except Exception as error:
        why = _extractor_reason(name, error)
        raise CheckpointError(f"the feature extractor of {name} cannot be loaded: {why}") from error


def _weights_reason(name: str, error: Exception) -> str:
    folder = Path(name)
    if folder.is_dir() and any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        return (
            "its weights are in pytorch_model.bin, which can run code and is never read; load it where you trust it "
            "and call save_pretrained of transformers, which writes model.safetensors"
        )
    return reason(error)


def _extractor_reason(name: str, error: Exception) -> str:
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in EXTRACTORS):
        return f"the folder has no {EXTRACTORS[0]}"
    return reason(error)


def check_id(name: str, config: Any, field: str) -> int:
    """A field of the config that must be one of the output units."""
    value = getattr(config, field, None)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < config.vocab_size:
        raise CheckpointError(
            f"{name}: {field} of config.json must be one of the {config.vocab_size} ids, got {str(value)[:40]}"
        )
    return value


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    return transformers


def _check_sizes(folder: Path) -> None:
    """No size in config.json is larger than the weights can fill: a network is built from it, layer by layer."""
    shapes = {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in read_shapes(file).items()}
    if not shapes:
        return  # the loader says what is missing
    numbers = sum(math.prod(shape) for shape in shapes.values())
    config = read_json_object(folder / "config.json")
    parts = [config, *(v for v in config.values() if isinstance(v, dict))]  # an encoder may have a config of its own
    for name, value in (item for part in parts for item in part.items()):
        if "drop" in name and isinstance(value, int | float) and not 0 <= value <= 1:
            raise CheckpointError(f"{folder / 'config.json'}: {name}={value} must be a share from 0 to 1")
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        most = len(shapes) if name.endswith("layers") else max(numbers, SMALL)
        if abs(value) > most or (value < 1 and name.endswith(SIZES)):
            raise CheckpointError(
                f"{folder / 'config.json'}: {name}={value}, but the weights beside it are {len(shapes)} tensors with "
                f"{numbers:,} numbers"
            )


def reason(error: Exception) -> str:
    """The first line of a message; advice to run a model's own code is left out."""
    text = str(error)
    if "trust_remote_code" in text or "weights_only" in text:
        return "it needs code of its own, which is never run"
    return (text.splitlines() or [type(error).__name__])[0][:LONGEST]
