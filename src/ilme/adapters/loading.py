"""From a name to a model: hub id, local folder, OpenAI `.pt`, whisper.cpp `.bin`. No remote code is ever run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ilme.adapters.hf import TransformerAED
from ilme.errors import BadInputError, CheckpointError, MissingExtraError

__all__ = ["hub_parts", "load_attention_model", "options_of"]

CLASSES = {
    "whisper": "ilme.adapters.whisper:Whisper",
    "moonshine": "ilme.adapters.moonshine:Moonshine",
    "speech_to_text": "ilme.adapters.speech2text:Speech2Text",
}


def load_attention_model(
    name: str, device: str = "cpu", dtype: torch.dtype = torch.float32, **options: Any
) -> TransformerAED:
    """Loads a pre-existing attention model.

    Args:
        name: A hub id, a folder in `transformers` format, an OpenAI `.pt`, or a whisper.cpp `.bin`.
        device: Where it runs.
        dtype: Number format of the weights.
        options: Language, task, prompt and the like of the model's own options.
    """
    if is_whisper_file(name):
        return _load_whisper_file(Path(name), device, dtype, options)
    kind = model_type(name)
    if kind not in CLASSES:
        known = ", ".join(sorted(CLASSES))
        raise BadInputError(f"{name} is a model of type {kind!r}; this package adapts: {known}")
    module, attribute = CLASSES[kind].split(":")
    adapter = getattr(__import__(module, fromlist=[attribute]), attribute)
    return adapter.from_pretrained(name, adapter.make_options(**options), device, dtype)  # type: ignore[no-any-return]


def _load_whisper_file(path: Path, device: str, dtype: torch.dtype, options: dict[str, Any]) -> TransformerAED:
    from ilme.adapters.openai_whisper import TiktokenTokenizer, build, find_ranks, read_pt
    from ilme.adapters.whisper import Whisper
    from ilme.adapters.whisper_cpp import read_ggml

    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    dims, parameters = read_pt(path) if path.suffix == ".pt" else read_ggml(path)
    given = options.pop("ranks", None)
    ranks = find_ranks(dims["n_vocab"] >= 51865, None if given is None else Path(given), beside=path)
    tokenizer = TiktokenTokenizer(ranks, dims["n_vocab"])
    model = build(dims, parameters).to(device=device, dtype=dtype)
    return Whisper(model, tokenizer, Whisper.make_options(**options))


def options_of(name: str, *, language: str = "en", prompt: str = "", ranks: str = "") -> dict[str, Any]:
    """The options among these that a model of that kind has, and that differ from its own defaults."""
    file = is_whisper_file(name)
    if not file and model_type(name) != "whisper":
        if prompt or language != "en":
            raise BadInputError(f"{name} takes neither a language nor a prompt")
        return {}
    given = {"language": language if language != "en" else "", "prompt": prompt, "ranks": ranks if file else ""}
    return {key: value for key, value in given.items() if value}


def is_whisper_file(name: str) -> bool:
    """Whether the name is of a single file of weights, OpenAI's or whisper.cpp's."""
    return Path(name).suffix in (".pt", ".bin") and not Path(name).is_dir()


def model_type(name: str) -> str:
    """`model_type` of a hub id's or a folder's config.json."""
    folder = Path(name)
    if folder.is_dir():
        file = folder / "config.json"
        if not file.exists():
            raise CheckpointError(f"{folder} has no config.json; a model folder has config.json and model.safetensors")
        try:
            return str(json.loads(file.read_text()).get("model_type", "unknown"))
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{file} is not JSON: {error}") from error
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
