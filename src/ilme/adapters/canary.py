"""Canary and Cohere's transcription model: a FastConformer encoder, and a decoder that is told what to write.

    model = ilme.load_model("nvidia/canary-1b-v2")                       # hub id or folder with safetensors
    model = ilme.load_model("CohereLabs/cohere-transcribe-03-2026")

Both start from the same labels, which say language, translation and punctuation. Their decoders differ in their
positions (computed, or learned) and in a projection of the encoder's states that Cohere's has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.decoder import FeedForward, Linear, TransformerDecoder
from ilme.adapters.hf import Audio, TransformerAED, read_layer
from ilme.adapters.hf_frames import length_mask
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer
from ilme.data.nemo_mel import NemoMel, NemoMelConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokenizer, Tokens

__all__ = ["Canary", "CanaryOptions", "CohereASR"]

FIRST = "<|startofcontext|>"
DITHER = 1e-5  # what Cohere's extractor adds to the samples where its file says nothing


@dataclass(frozen=True)
class CanaryOptions:
    """How such a model is asked to write.

    Attributes:
        language: Language code of the audio.
        target: Language code of the text, for a translation; the audio's own if not given.
        punctuation: Write case and punctuation.
        max_labels: The most labels of one window.
    """

    language: str = "en"
    target: str = ""
    punctuation: bool = True
    max_labels: int = 256

    def __post_init__(self) -> None:
        if self.max_labels < 1:
            raise BadInputError(f"max_labels must be at least 1, got {self.max_labels}")


class Canary(TransformerAED):
    """A Canary model; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `CanaryForConditionalGeneration`.
        tokenizer: Its tokenizer.
        options: Language, translation, punctuation.
        extractor: How audio becomes features; None as the model's config says.
    """

    kind = "canary"
    upstream = "CanaryForConditionalGeneration"
    options_class = CanaryOptions
    lead_label = ""  # a label before all others

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        options: CanaryOptions | None = None,
        extractor: NemoMel | None = None,
    ) -> None:
        self.options = options or CanaryOptions()
        self.model = model.eval().requires_grad_(False)
        prefix = self._prefix(tokenizer.tokens)
        positions = int(getattr(model.config, "decoder_config", model.config).max_position_embeddings)
        super().__init__(
            read_decoder(model),
            tokenizer,
            prefix=prefix,
            suppress=unwritten(tokenizer.tokens),
            max_labels=min(self.options.max_labels, positions - len(prefix)),
        )
        bands = int(model.config.encoder_config.num_mel_bins)
        self._extractor = extractor or NemoMel(NemoMelConfig(feature_size=bands))
        if self._extractor.config.feature_size != bands:
            made = self._extractor.config.feature_size
            raise CheckpointError(f"the encoder reads {bands} mel bands, and preprocessor_config.json makes {made}")

    @classmethod
    def from_pretrained(
        cls, name: str, options: Any = None, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Loads a hub id or a local folder. Only safetensors are read, and no code of the repository is run."""
        from ilme.adapters.hub import check_id, extractor_settings, hub_model, hub_tokenizer

        model, words = hub_model(name, cls.upstream, device, dtype), hub_tokenizer(name)
        end, first = check_id(name, model.config, "eos_token_id"), words.convert_tokens_to_ids(FIRST)
        if not isinstance(first, int):
            raise CheckpointError(f"the tokenizer of {name} has no {FIRST}: it is not {cls.__name__}'s")
        try:
            extractor = NemoMel(NemoMelConfig.of(extractor_settings(name)))
        except BadInputError as error:
            raise CheckpointError(f"the feature extractor of {name}: {error}") from error
        return cls(model, HuggingFaceTokenizer(words, model.config.vocab_size, first, end), options, extractor)

    def _prefix(self, tokens: Tokens) -> list[int]:
        """The labels before the text: its start, languages, punctuation, and what is not told or not wanted."""
        o = self.options
        names = [
            *([self.lead_label] if self.lead_label else []),
            *(FIRST, "<|startoftranscript|>", "<|emo:undefined|>"),
            *(f"<|{o.language}|>", f"<|{o.target or o.language}|>"),
            *("<|pnc|>" if o.punctuation else "<|nopnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
        ]
        ids = {piece: i for i, piece in enumerate(tokens.pieces)}
        for code in {o.language, o.target or o.language}:
            if f"<|{code}|>" not in ids:
                raise BadInputError(f"the model has no language {code!r:.40}; give a code such as en, de, fr")
        missing = [name for name in names if name not in ids]
        if missing:
            raise CheckpointError(f"this is not the tokenizer of such a model: it has no {', '.join(missing)}")
        return [ids[name] for name in names]

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Normalised log-mel features (B, T, bands) and their lengths (B,)."""
        return self._extractor(audio)

    @torch.inference_mode()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        heard = self.model.model.encoder(
            input_features=features.to(self.device, self.dtype),
            attention_mask=length_mask(lengths.to(self.device), features.shape[1]),
        )
        mask = heard.attention_mask.bool()
        return self._projected(heard.last_hidden_state), None if bool(mask.all()) else mask

    def _projected(self, states: Tensor) -> Tensor:
        """Encoder states in the decoder's width."""
        return states


class CohereASR(Canary):
    """Cohere's transcription model; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `CohereAsrForConditionalGeneration`.
        tokenizer: Its tokenizer.
        options: Language, punctuation.
        extractor: How audio becomes features; None as the model's config says.
    """

    kind = "cohere_asr"
    upstream = "CohereAsrForConditionalGeneration"
    lead_label = "▁"

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """As Canary's, of samples with a little noise, which is the same for all audio of one length."""
        return super().features([dithered(samples) for samples in audio])

    def _projected(self, states: Tensor) -> Tensor:
        projected: Tensor = self.model.model.decoder.proj(states)
        return projected


def dithered(samples: Audio) -> Audio:
    noise = torch.randn(len(samples), generator=torch.Generator().manual_seed(len(samples)))
    noisy: Audio = (torch.from_numpy(np.asarray(samples, np.float32)) + DITHER * noise).numpy()
    return noisy


def read_decoder(model: Any) -> TransformerDecoder:
    """The decoder of a `CanaryForConditionalGeneration` or a `CohereAsrForConditionalGeneration`."""
    decoder = model.model.decoder
    attention = decoder.layers[0].self_attn
    if attention.num_key_value_groups != 1:
        raise BadInputError("this model shares keys among heads; only one key per head is supported")
    layers = [
        read_layer(
            layer,
            norms=("input_layernorm", "post_attention_layernorm", "final_layernorm"),
            out="o_proj",
            forward=FeedForward(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2),
            heads=int(attention.q_proj.out_features // attention.head_dim),
            scale=float(layer.self_attn.scaling),
        )
        for layer in decoder.layers
    ]
    words, places = decoder.embed_tokens.weight.detach(), positions_of(decoder.pos_emb)

    def embed(labels: Tensor, at: int) -> Tensor:
        where = places[at : at + labels.shape[1]].to(words)
        embedded: Tensor = decoder.embedding_layernorm(words[labels] + where)
        return embedded

    return TransformerDecoder(layers, embed, decoder.norm, Linear.of(model.proj_out))


def positions_of(embedding: Any) -> Tensor:
    """What is added for each position (positions, D): learned, or sines and cosines over √D."""
    if isinstance(embedding, torch.nn.Embedding):
        return embedding.weight.detach()
    table: Tensor = embedding.positional_embedding
    return table / math.sqrt(table.shape[1])


def unwritten(tokens: Tokens) -> list[int]:
    """Units such as <|en|> and <unk>, which no transcript contains; the end is none of them."""
    special = ("<unk>", "<pad>", "<s>", "</s>")
    marked = [i for i, p in enumerate(tokens.pieces) if p in special or p.startswith(("<|", "<id "))]
    return [i for i in marked if i != tokens.eos]
