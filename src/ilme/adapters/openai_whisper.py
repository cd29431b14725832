"""Whisper weights in OpenAI's own `.pt` files, with the byte-pair ranks of the `openai-whisper` package.

The weights are read with `weights_only` and placed into `transformers`' Whisper; the tokenizer names its
units as the hub's tokenizers do, so that an LM made for the one fits the other.
"""

from __future__ import annotations

import base64
import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.tokens import Tokens

__all__ = ["TiktokenTokenizer", "build", "find_ranks", "read_pt", "rename"]

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
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except Exception as error:  # torch raises many kinds for damaged files; the cause stays attached
        raise CheckpointError(f"{path} cannot be read as weights: {error}") from error
    if not isinstance(data, dict) or not {"dims", "model_state_dict"} <= set(data):
        raise CheckpointError(f"{path} holds no OpenAI Whisper model: expected 'dims' and 'model_state_dict'")
    return dict(data["dims"]), dict(data["model_state_dict"])


def build(dims: dict[str, int], parameters: dict[str, Tensor]) -> Any:
    """A float32 `WhisperForConditionalGeneration` with OpenAI's parameters."""
    try:
        from transformers import WhisperConfig, WhisperForConditionalGeneration
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error

    multilingual = dims["n_vocab"] >= 51865
    end = 50257 if multilingual else 50256
    config = WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        encoder_layers=dims["n_audio_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_layers=dims["n_text_layer"],
        decoder_attention_heads=dims["n_text_head"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        eos_token_id=end,
        bos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=end + 1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    state = {rename(name): value.float() for name, value in parameters.items()}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"these weights are no Whisper model: {len(missing)} parameters are missing "
            f"({', '.join(missing[:3])}), {len(unexpected)} unknown ({', '.join(unexpected[:3])})"
        )
    return model


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
    """The file of byte-pair ranks: the one given, one beside the weights, or that of an installed openai-whisper."""
    name = "multilingual.tiktoken" if multilingual else "gpt2.tiktoken"
    if given is not None:
        if not given.exists():
            raise BadInputError(f"{given}: no such file of byte-pair ranks")
        return given
    places = [beside.parent / name] if beside is not None else []
    spec = importlib.util.find_spec("whisper")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "assets" / name)
    for place in places:
        if place.exists():
            return place
    raise BadInputError(
        f"{name} was not found: OpenAI's weights come without a tokenizer. Put {name} (in the assets of the "
        "openai-whisper package) beside the weights, or install openai-whisper"
    )


def byte_letters() -> dict[int, str]:
    """A printable letter for each byte, as GPT-2's vocabulary files write them (Ġ is the space)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _read_ranks(path: Path) -> dict[bytes, int]:
    merges = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            merges[base64.b64decode(piece)] = int(rank)
        except ValueError as error:
            raise CheckpointError(
                f"{path}, line {number}: expected a base64 piece and its rank, got {line!r}"
            ) from error
    return merges
