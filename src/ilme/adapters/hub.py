"""Models and LMs of `transformers`, by hub id or folder. Only safetensors are read, and no remote code is ever run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ilme.errors import BadInputError, CheckpointError, MissingExtraError

__all__ = ["CLASSES", "adapter_class", "hub_parts", "model_type"]

CLASSES = {
    "whisper": "ilme.adapters.whisper:Whisper",
    "moonshine": "ilme.adapters.moonshine:Moonshine",
    "speech_to_text": "ilme.adapters.speech2text:Speech2Text",
}


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
        try:
            return str(json.loads(file.read_text()).get("model_type", "unknown"))
        except (json.JSONDecodeError, AttributeError) as error:
            raise CheckpointError(f"{file} is not a JSON object: {error}") from error
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    try:
        return str(AutoConfig.from_pretrained(name, trust_remote_code=False).model_type)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{name} is neither a local model nor a hub id that can be reached: {str(error).splitlines()[0]}"
        ) from error


def hub_parts(name: str, model_class: str, device: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The model, tokenizer and feature extractor of a hub id or folder, from safetensors alone."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    try:
        model = getattr(transformers, model_class).from_pretrained(
            name, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        load = transformers.AutoFeatureExtractor.from_pretrained
        extractor = load(name, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device), tokenizer, extractor
