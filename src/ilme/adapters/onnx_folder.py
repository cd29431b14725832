"""What stands beside the ONNX graphs of an attention model: tokenizer, labels of the start, what is never written.

    parts = read_parts(Path("whisper-tiny-onnx/"), decoder, WhisperOptions(language="de"))

A folder of Optimum or Transformers.js has config.json and tokenizer.json (and, as a rule, preprocessor_config.json and
generation_config.json). The package of Moonshine's maker has its tokenizer in a JavaScript bundle, moonshine*.js.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer, TokenizerFile
from ilme.adapters.moonshine import MoonshineOptions, unwritten
from ilme.adapters.moonshine_onnx import EOS, SOS, llama_js_tokenizer
from ilme.adapters.onnx_session import OnnxGraph, whole
from ilme.adapters.whisper import AUTO, WhisperOptions, WhisperVocabulary, blank, feature_extractor
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokenizer

__all__ = ["Options", "Parts", "bundle_parts", "read_parts"]

Options = WhisperOptions | MoonshineOptions | Mapping[str, Any]
Wanted = TypeVar("Wanted", WhisperOptions, MoonshineOptions)
UNITS = 10**6  # more output units than any model has


class Parts(NamedTuple):
    """What `OnnxAttention` needs beside its graphs; the fields are its arguments."""

    tokenizer: Tokenizer
    prefix: Sequence[int]
    suppress: Sequence[int]
    suppress_first: Sequence[int] = ()
    max_labels: int = 194
    window: float = 30.0
    extractor: Any = None


def read_parts(folder: Path, decoder: OnnxGraph, options: Options | None = None) -> Parts:
    """Reads a folder whose config.json says whisper or moonshine, or the package of Moonshine's maker.

    Args:
        folder: The folder.
        decoder: The decoder's graph; the maker's bundle is looked for beside it and up to three folders above.
        options: The model's own options, or some of them by name.
    """
    bundle = None if (folder / "config.json").is_file() else find_bundle(decoder.path.parent)
    if bundle is not None:
        return bundle_parts(bundle, decoder, _checked(MoonshineOptions, options, folder))
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind == "whisper":
        return _whisper(folder, config, _checked(WhisperOptions, options, folder))
    if kind == "moonshine":
        return _moonshine(folder, config, _checked(MoonshineOptions, options, folder))
    raise CheckpointError(f"{folder} holds a model of type {kind!r:.40}; in ONNX, whisper and moonshine can be read")


def _checked(wanted: type[Wanted], options: Options | None, folder: Path) -> Wanted:
    if isinstance(options, wanted):
        return options
    if options is not None and not isinstance(options, Mapping):
        raise BadInputError(f"{folder} takes {wanted.__name__}, not {type(options).__name__}")
    try:
        return wanted(**(options or {}))
    except TypeError as error:
        raise BadInputError(f"{folder} takes {wanted.__name__}: {error}") from error


def _whisper(folder: Path, config: dict[str, Any], options: WhisperOptions) -> Parts:
    if options.timestamps:
        raise BadInputError(
            f"{folder}: an ONNX Whisper writes no time stamps here; use the model's safetensors for them"
        )
    positions = whole(config.get("max_target_positions"), f"{folder}: max_target_positions", 2, 10**5)
    source = whole(config.get("max_source_positions"), f"{folder}: max_source_positions", 50, 10**5)
    mels = whole(config.get("num_mel_bins"), f"{folder}: num_mel_bins", 1, 1024)
    tokenizer, _, _ = _tokenizer(folder, config, lead=" ")
    vocabulary = WhisperVocabulary.of(tokenizer)
    if options.language == AUTO and vocabulary.multilingual:
        raise BadInputError(f"{folder}: an ONNX Whisper tells no language here; name it, such as language=de")
    prefix = vocabulary.prefix(options, vocabulary.multilingual, room=positions // 2 - 1)
    extractor = feature_extractor(SimpleNamespace(num_mel_bins=mels, max_source_positions=source))
    _check_extractor(folder, extractor)
    return Parts(
        tokenizer,
        prefix,
        vocabulary.suppressed(options),
        [vocabulary.ids["<|endoftext|>"], *blank(tokenizer)],
        min(positions // 2, positions - len(prefix)),
        source * 2 / 100,  # two 10 ms frames per position
        extractor,
    )


def _check_extractor(folder: Path, extractor: Any) -> None:
    """Whether preprocessor_config.json, if there is one, asks for the features that config.json implies."""
    path = folder / "preprocessor_config.json"
    asked = read_json(path) if path.is_file() else {}
    for name in ("feature_size", "sampling_rate", "hop_length", "n_fft", "chunk_length"):
        have = getattr(extractor, name)
        if asked.get(name, have) != have:
            raise CheckpointError(f"{path}: {name} is {asked[name]!r:.40}; a Whisper of this config.json takes {have}")


def _moonshine(folder: Path, config: dict[str, Any], options: MoonshineOptions) -> Parts:
    tokenizer, sos, eos = _tokenizer(folder, config)
    return Parts(tokenizer, [sos], unwritten(tokenizer, eos), max_labels=options.max_labels)


def bundle_parts(bundle: Path, decoder: OnnxGraph, options: MoonshineOptions | None = None) -> Parts:
    """Moonshine with the tokenizer out of its maker's JavaScript bundle."""
    size = whole((decoder.outputs.get("logits") or (None,))[-1], f"{decoder.path}: the last size of logits", 1, UNITS)
    words = HuggingFaceTokenizer(llama_js_tokenizer(bundle, size), size, SOS, EOS)
    return Parts(words, [SOS], unwritten(words, EOS), max_labels=(options or MoonshineOptions()).max_labels)


def find_bundle(folder: Path) -> Path | None:
    """moonshine*.js of a folder or of one of the three above: the package has dist/model/tiny/float/*.onnx."""
    above = folder.resolve()
    for place in (above, *above.parents[:3]):
        found = min(place.glob("moonshine*.js"), key=lambda p: (len(p.name), p.name), default=None)
        if found is not None:
            return found
    return None


def _tokenizer(folder: Path, config: dict[str, Any], lead: str = "") -> tuple[HuggingFaceTokenizer, int, int]:
    """tokenizer.json over the output units of config.json, and the ids of start and end.

    Where config.json does not name those two, generation_config.json does.
    """
    path = folder / "generation_config.json"
    both = (read_json(path) if path.is_file() else {}) | {k: v for k, v in config.items() if v is not None}
    size = whole(both.get("vocab_size"), f"{folder}: vocab_size", 1, UNITS)
    sos, eos = (
        whole(both.get(name), f"{folder}: {name}", 0, size - 1) for name in ("decoder_start_token_id", "eos_token_id")
    )
    words = TokenizerFile(folder / "tokenizer.json")
    return HuggingFaceTokenizer(words, size, sos, eos, lead=lead), sos, eos


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; a model folder has config.json and tokenizer.json") from error
    except ValueError as error:  # bad JSON, bad UTF-8
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found
