"""Whisper's parameters under the names that `transformers` gives them, without its code.

Files of OpenAI, whisper.cpp and CTranslate2 are placed in this. Encoder and decoder are computed here in any case, and
to import `transformers`' own takes longer than to write down a short file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["WhisperNetwork"]


class WhisperNetwork(nn.Module):
    """The parameters; without memory of their own until `fill` gives them.

    Args:
        dims: The dimensions, as OpenAI's files name them.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=dims["n_vocab"],
            num_mel_bins=dims["n_mels"],
            d_model=dims["n_audio_state"],
            max_source_positions=dims["n_audio_ctx"],
            max_target_positions=dims["n_text_ctx"],
            encoder_attention_heads=dims["n_audio_head"],
            decoder_attention_heads=dims["n_text_head"],
            scale_embedding=False,
        )
        width = dims["n_audio_state"]
        with torch.device("meta"):
            encoder: Any = _Part(width, dims["n_audio_layer"], crossed=False)
            encoder.conv1 = nn.Conv1d(dims["n_mels"], width, 3, padding=1)
            encoder.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
            encoder.embed_positions = _table(dims["n_audio_ctx"], width)
            decoder: Any = _Part(dims["n_text_state"], dims["n_text_layer"], crossed=True)
            decoder.embed_tokens = _table(dims["n_vocab"], dims["n_text_state"])
            decoder.embed_positions = _table(dims["n_text_ctx"], dims["n_text_state"])
            self.model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
            self.proj_out = nn.Linear(dims["n_text_state"], dims["n_vocab"], bias=False)
        encoder.config = self.config

    def fill(self, state: Mapping[str, Tensor]) -> WhisperNetwork:
        """Takes the tensors as its parameters; the output layer is the embedding."""
        self.load_state_dict(dict(state), assign=True)
        decoder: Any = self.model["decoder"]
        self.proj_out.weight = decoder.embed_tokens.weight
        return self

    def get_encoder(self) -> Any:
        return self.model["encoder"]


class _Part(nn.Module):
    """Layers, and the normalisation after them."""

    def __init__(self, width: int, layers: int, crossed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, crossed) for _ in range(layers))
        self.layer_norm = nn.LayerNorm(width)


class _Layer(nn.Module):
    activation_fn = staticmethod(F.gelu)

    def __init__(self, width: int, crossed: bool) -> None:
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = _Attention(width), nn.LayerNorm(width)
        if crossed:
            self.encoder_attn, self.encoder_attn_layer_norm = _Attention(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.final_layer_norm = nn.LayerNorm(width)


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)


def _table(rows: int, width: int) -> nn.Embedding:
    """An embedding that is not drawn at random: without memory that would import torch's compiler."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
