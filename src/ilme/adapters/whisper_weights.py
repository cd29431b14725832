"""The weights of a Whisper encoder, from OpenAI's or whisper.cpp's files into a network of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ilme.adapters.openai_whisper import read_pt
from ilme.adapters.whisper_cpp import read_ggml
from ilme.errors import CheckpointError
from ilme.models.whisper_encoder import WhisperEncoder
from ilme.runtime.tensors import read_tensors, write_tensors

__all__ = ["encoder_weights", "load_whisper_encoder", "save_whisper_encoder"]

_PREFIX = "encoder."
_POSITIONS = "positional_embedding"  # sinusoids: the network computes its own


def load_whisper_encoder(encoder: WhisperEncoder, file: str | Path) -> int:
    """Fills the layers from OpenAI's `.pt` file, or from what `save_whisper_encoder` wrote; how many numbers."""
    path = Path(file)
    if path.suffix == ".safetensors":
        found = read_tensors(path)[0]
    else:
        found = read_pt(path)[1]
    return _fill(encoder, encoder_weights(found), path)


def encoder_weights(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's part of a model's parameters in OpenAI's names, without the prefix and the positions."""
    own = {n.removeprefix(_PREFIX): v for n, v in parameters.items() if n.startswith(_PREFIX)}
    return {name: value for name, value in own.items() if name != _POSITIONS}


def save_whisper_encoder(source: str | Path, file: str | Path) -> Path:
    """The encoder alone of an OpenAI `.pt` file, in the types it has there, or of a whisper.cpp file, in 16 bits."""
    path = Path(source)
    if path.suffix == ".bin":
        parameters = {name: value.half() for name, value in read_ggml(path)[1].items()}
    else:
        parameters = read_pt(path)[1]
    kept = {f"{_PREFIX}{name}": value for name, value in encoder_weights(parameters).items()}
    write_tensors(Path(file), kept, {"source": path.name})
    return Path(file)


def _fill(encoder: WhisperEncoder, weights: Mapping[str, Tensor], path: Path) -> int:
    wanted = dict(encoder.named_parameters())
    missing, extra = sorted(set(wanted) - set(weights)), sorted(set(weights) - set(wanted))
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which this encoder does not"
        raise CheckpointError(f"{path} does not fit the encoder's shape (whisper.layers, width, heads): it {what}")
    for name, value in wanted.items():
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(weights[name].shape)}, this encoder needs {tuple(value.shape)}"
            )
        value.data.copy_(weights[name])
    return sum(value.numel() for value in wanted.values())
