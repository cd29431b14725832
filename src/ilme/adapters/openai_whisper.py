"""Whisper weights in OpenAI's own `.pt` files, with the byte-pair ranks of the `openai-whisper` package.

The weights are read with `weights_only`; the tokenizer names its units as the hub's tokenizers do, so that an LM made
for the one fits the other.
"""

from __future__ import annotations

import base64
import importlib.util
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.whisper_network import WhisperNetwork
from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.runtime.tensors import check_finite
from ilme.tokens import Tokens, byte_letters

__all__ = ["DIMENSIONS", "TiktokenTokenizer", "build", "check_dims", "find_ranks", "read_pt", "rename"]

DIMENSIONS = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)
ENGLISH_ONLY = 51864  # output units of an English-only model; the others have more
NOTHING = "="  # the last piece of multilingual.tiktoken: its id stands for no text, as the hub's tokenizers have it
LARGEST_RANKS = 1 << 24  # bytes; the files of openai-whisper have less than one in sixteen of that

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# In the order of their ids.
LANGUAGES = re.findall(
    r"\w+",
    """en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur
    hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km
    sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw
    su yue""",
)
# OpenAI's name of each parameter and the name in `transformers`.
RENAMES = (
    (r"^(encoder|decoder)\.", r"model.\1."),
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"\.query\.", ".q_proj."),
    (r"\.key\.", ".k_proj."),
    (r"\.value\.", ".v_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.ln_post\.", ".layer_norm."),
    (r"^(model\.decoder)\.ln\.", r"\1.layer_norm."),
    (r"\.token_embedding\.", ".embed_tokens."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
)


def rename(name: str) -> str:
    """decoder.blocks.0.attn.query.weight → model.decoder.layers.0.self_attn.q_proj.weight."""
    for old, new in RENAMES:
        name = re.sub(old, new, name)
    return name


def read_pt(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The dimensions and the parameters of a `.pt` file."""
    _check_archive(path)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds, and its advice is to load without the check: never passed on
        raise CheckpointError(
            f"{path} cannot be read as weights: it is damaged, or holds objects that could run code, which are never "
            "loaded; get it again from where the model is published"
        ) from None
    if not isinstance(data, dict) or not {"dims", "model_state_dict"} <= set(data):
        raise CheckpointError(f"{path} holds no OpenAI Whisper model: expected 'dims' and 'model_state_dict'")
    if not isinstance(data["dims"], dict) or not isinstance(data["model_state_dict"], dict):
        raise CheckpointError(f"{path} is damaged: 'dims' and 'model_state_dict' must be mappings")
    parameters = dict(data["model_state_dict"])
    for name, value in parameters.items():
        _check_tensor(path, name, value)
    dims = dict(data["dims"])
    check_dims(path, dims, parameters)
    return dims, parameters


def _check_archive(path: Path) -> None:
    """A regular file that torch wrote, and that unpacks to no more than it is large."""
    try:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder; name a .pt file of OpenAI's Whisper")
        if not path.is_file():
            what = "not a regular file" if path.exists() else "no such file"
            raise CheckpointError(f"{path}: {what}")
        if not path.stat().st_size:
            raise CheckpointError(f"{path} is empty: it cannot be read as weights; copy it again")
        with path.open("rb") as stream:
            start = stream.read(2)
        if start not in (b"PK", b"\x80\x02"):
            raise CheckpointError(f"{path} cannot be read as weights: it is no file of torch's; copy it again")
        if start == b"PK":
            with zipfile.ZipFile(path) as archive:
                packed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
            if packed:
                raise CheckpointError(f"{path} holds the packed entry {packed[0][:80]!r}, which torch never writes")
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read as weights: {error}; copy it again") from error


def _check_tensor(path: Path, name: Any, value: Any) -> None:
    if (
        not isinstance(name, str)
        or not isinstance(value, Tensor)
        or value.layout != torch.strided
        or value.is_quantized
    ):
        raise CheckpointError(f"{path} is damaged: {str(name)[:80]!r} of its parameters is no tensor of numbers")
    if not value.is_floating_point() or value.device.type != "cpu":
        raise CheckpointError(f"{path}: {name} is stored as {value.dtype} on {value.device.type}, which are no weights")
    # A view can repeat a few numbers any number of times, and would be copied at its full size.
    if value.untyped_storage().nbytes() < value.numel() * value.element_size():
        raise CheckpointError(f"{path} is damaged: {name} has more numbers than the file holds for it")


def check_dims(path: Path, dims: dict[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """The dimensions are those of the parameters, which are finite: a network of this size can be made and filled."""
    if not parameters:
        raise CheckpointError(f"{path} is damaged: it holds no parameters")
    for name in DIMENSIONS:
        value = dims.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{path} is damaged: {name} must be a whole number above 0, got {str(value)[:40]}")
    found = {
        "n_vocab": _dimension(parameters, "decoder.token_embedding.weight", 0),
        "n_text_state": _dimension(parameters, "decoder.token_embedding.weight", 1),
        "n_text_ctx": _dimension(parameters, "decoder.positional_embedding", 0),
        "n_audio_ctx": _dimension(parameters, "encoder.positional_embedding", 0),
        "n_audio_state": _dimension(parameters, "encoder.positional_embedding", 1),
        "n_mels": _dimension(parameters, "encoder.conv1.weight", 1),
        "n_audio_layer": _blocks(parameters, "encoder"),
        "n_text_layer": _blocks(parameters, "decoder"),
    }
    for name, value in found.items():
        if value is not None and value != dims[name]:
            raise CheckpointError(f"{path} is damaged: {name} is {dims[name]}, its parameters have {value}")
    for part in ("audio", "text"):
        if dims[f"n_{part}_state"] % dims[f"n_{part}_head"]:
            raise CheckpointError(
                f"{path} is damaged: n_{part}_state={dims[f'n_{part}_state']} is not divided evenly by "
                f"n_{part}_head={dims[f'n_{part}_head']}"
            )
    if dims["n_audio_state"] != dims["n_text_state"]:
        raise CheckpointError(f"{path}: the encoder's width differs from the decoder's, which no Whisper has")
    check_finite(path, parameters)


def _dimension(parameters: Mapping[str, Tensor], name: str, axis: int) -> int | None:
    """None where it is not there: then `build` names what is missing."""
    value = parameters.get(name)
    return None if value is None or value.ndim <= axis else value.shape[axis]


def _blocks(parameters: Mapping[str, Tensor], part: str) -> int | None:
    return len({name.split(".")[2] for name in parameters if name.startswith(f"{part}.blocks.")}) or None


def build(dims: dict[str, int], parameters: dict[str, Tensor]) -> WhisperNetwork:
    """OpenAI's parameters in float32, where the adapter looks for them."""
    if dims["n_vocab"] < ENGLISH_ONLY:
        raise CheckpointError(f"these weights are no Whisper model: it has {ENGLISH_ONLY} units, not {dims['n_vocab']}")
    state = {rename(name): value for name, value in parameters.items()}
    if "model.decoder.embed_tokens.weight" in state:
        state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    network = WhisperNetwork(dims)
    _check_fit(network.state_dict(), state)
    return network.fill({name: value.float() for name, value in state.items()})


def _check_fit(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """The weights are those of the network, name by name."""
    missing, unexpected = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    if missing or unexpected:
        raise CheckpointError(
            f"these weights are no Whisper model: {len(missing)} parameters are missing "
            f"({', '.join(missing[:3])}), {len(unexpected)} unknown ({', '.join(unexpected[:3])})"
        )
    for name, value in wanted.items():
        if state[name].shape != value.shape:
            raise CheckpointError(
                f"these weights are no Whisper model: {name} has shape {tuple(state[name].shape)}, and its dimensions "
                f"need {tuple(value.shape)}"
            )


class TiktokenTokenizer:
    """Whisper's byte-pair encoding from a `.tiktoken` file of ranks.

    Args:
        ranks: The file: one base64 piece and its rank per line.
        size: Output units of the model: 51864 is English-only; multilingual models have 51865 or 51866.
    """

    def __init__(self, ranks: Path, size: int) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise MissingExtraError("tiktoken", "openai") from error

        merges = _read_ranks(ranks)
        languages = max(size - 1501 - 8 - len(merges), 99)
        special = special_names(languages)
        if len(merges) + len(special) != size:
            raise CheckpointError(
                f"{ranks} gives {len(merges) + len(special)} tokens, the model has {size}: "
                "English-only models need gpt2.tiktoken, the others multilingual.tiktoken"
            )
        self._first_special = len(merges)
        self._encoding = tiktoken.Encoding(
            name=ranks.name,
            pat_str=PATTERN,
            mergeable_ranks=merges,
            special_tokens={name: len(merges) + i for i, name in enumerate(special)},
        )
        letters = byte_letters()
        pieces = sorted(merges, key=merges.__getitem__)
        names = ["".join(letters[byte] for byte in piece) for piece in pieces]
        end = len(merges)
        self._tokens = Tokens((*names, *special), sos=end + 1, eos=end)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        text = text.strip()
        return self.encode_raw(" " + text) if text else []

    def encode_raw(self, text: str) -> list[int]:
        """Ids of the text exactly as it stands."""
        return list(self._encoding.encode(text, disallowed_special=()))

    def decode(self, ids: list[int]) -> str:
        return str(self._encoding.decode([i for i in ids if i < self._first_special])).strip()


def special_names(languages: int) -> list[str]:
    """The special units in the order of their ids, which follow the text pieces."""
    return [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *(f"<|{code}|>" for code in LANGUAGES[:languages]),
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
        *(f"<|{i * 0.02:.2f}|>" for i in range(1501)),
    ]


def find_ranks(multilingual: bool, given: Path | None = None, beside: Path | None = None) -> Path:
    """The file of byte-pair ranks: the one given, one beside the weights, links followed, or openai-whisper's."""
    name = "multilingual.tiktoken" if multilingual else "gpt2.tiktoken"
    if given is not None:
        if not given.is_file():
            raise BadInputError(f"{given}: no such file of byte-pair ranks")
        return given
    places = [] if beside is None else [beside.parent / name, beside.resolve().parent / name]
    spec = importlib.util.find_spec("whisper")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "assets" / name)
    for place in places:
        if place.is_file():
            return place
    raise BadInputError(
        f"{name} was not found: OpenAI's weights come without a tokenizer. Put {name} (in the assets of the "
        "openai-whisper package) beside the weights, name it with --ranks, or install openai-whisper"
    )


def _read_ranks(path: Path) -> dict[bytes, int]:
    """The pieces and their ranks, 0 to one less than there are. What the file holds is never quoted: it may be any."""
    if path.stat().st_size > LARGEST_RANKS:
        raise CheckpointError(f"{path} is too large to be a file of byte-pair ranks")
    merges: dict[bytes, int] = {}
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except ValueError:
        raise CheckpointError(f"{path} is no file of byte-pair ranks: it is not plain text") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            merges[b"" if piece == NOTHING else base64.b64decode(piece, validate=True)] = int(rank)
        except ValueError:
            raise CheckpointError(f"{path}, line {number}: expected a base64 piece and its rank") from None
    if sorted(merges.values()) != list(range(len(merges))):
        raise CheckpointError(
            f"{path}: the ranks of its {len(merges)} pieces are not 0 to {len(merges) - 1}, each once"
        )
    return merges
