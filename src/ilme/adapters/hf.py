"""Attention models of `transformers` as an `AttentionDecoder`: what they have in common.

A new model is one subclass that says how its decoder layers are called (`read_layer`), how audio becomes
features (`features`) and how features become encoder states (`hidden`). Everything a search, an internal LM
or the tuner needs follows from that. The `transformers` model itself runs only its encoder; the decoder's
weights are read into `ilme.adapters.decoder`, which keeps its cache as plain tensors that a search can reorder.

Shapes: n label sequences, B utterances, T encoder frames, V output units, D the model's width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.decoder import (
    Cache,
    Context,
    CrossAttention,
    FeedForward,
    Layer,
    Linear,
    TransformerDecoder,
    WatchedAttention,
    log_counts,
)
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer
from ilme.errors import BadInputError
from ilme.models.packed import worth_packing
from ilme.runtime.formats import Format
from ilme.runtime.state import State
from ilme.tokens import Tokenizer, Tokens

__all__ = [
    "LabelRules",
    "OwnOptions",
    "TransformerAED",
    "encode_apart",
    "read_bart_layers",
    "read_layer",
]

Audio = np.ndarray[Any, np.dtype[np.float32]]
FOLLOWING = 6  # heads of a Transformer from whose attention labels get their times
RATE = 16_000  # samples a second that every model here expects


def read_layer(
    layer: Any,
    *,
    norms: tuple[str, str, str],
    out: str,
    forward: FeedForward,
    heads: int,
    scale: float,
) -> Layer:
    """Reads one decoder layer that has `self_attn` and `encoder_attn`, each with q_proj, k_proj, v_proj and `out`.

    Args:
        layer: The `transformers` module.
        norms: Names of the normalisations before self-attention, cross-attention and the feed-forward block.
        out: Name of the attention's output map.
        forward: The feed-forward block without its normalisation.
        heads: Attention heads.
        scale: Factor on the attention scores.
    """
    own, cross = layer.self_attn, layer.encoder_attn
    return Layer(
        self_norm=getattr(layer, norms[0]),
        self_qkv=Linear.of(own.q_proj, own.k_proj, own.v_proj),
        self_out=Linear.of(getattr(own, out)),
        cross_norm=getattr(layer, norms[1]),
        cross_q=Linear.of(cross.q_proj),
        cross_kv=Linear.of(cross.k_proj, cross.v_proj),
        cross_out=Linear.of(getattr(cross, out)),
        forward_norm=getattr(layer, norms[2]),
        forward=forward,
        heads=heads,
        scale=scale,
    )


def read_bart_layers(model: Any) -> list[Layer]:
    """The decoder layers of a model that names them as BART does: Whisper, Speech2Text."""
    config = model.config
    heads = int(config.decoder_attention_heads)
    return [
        read_layer(
            layer,
            norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
            out="out_proj",
            forward=FeedForward(layer.fc1, layer.activation_fn, layer.fc2),
            heads=heads,
            scale=float((config.d_model // heads) ** -0.5),
        )
        for layer in model.model.decoder.layers
    ]


class LabelRules(Protocol):
    """What may follow what, where that depends on the labels so far; its state is one tensor, sequence first."""

    def start(self, n: int) -> Tensor:
        """The states of n empty sequences."""
        ...

    def advance(self, labels: Tensor, state: Tensor) -> Tensor:
        """The states after one more label (n,)."""
        ...

    def apply(self, logits: Tensor, state: Tensor) -> Tensor:
        """Logits (n, V) with −∞ for what may not follow."""
        ...


class OwnOptions:
    """A model with options of its own, such as a language."""

    options_class: type  # a frozen dataclass with the model's own options

    @classmethod
    def make_options(cls, **options: Any) -> Any:
        known = [f.name for f in fields(cls.options_class)]
        foreign = [name for name in options if name not in known]
        if foreign:
            takes = f"it takes {', '.join(known)}" if known else "it has no options"
            raise BadInputError(f"{cls.__name__} takes no {', '.join(foreign)}; {takes}")
        return cls.options_class(**options)


class TransformerAED(OwnOptions, ABC):
    """An encoder and a Transformer decoder over it; implements `ilme.protocols.AttentionDecoder`.

    Args:
        decoder: The decoder's layers.
        tokenizer: Text to ids, over the inventory of the output layer.
        prefix: Labels that stand before every sequence (start symbol, language, task, prompt).
        suppress: Ids that are never put out.
        suppress_first: Ids that are not put out as the first label.
        max_labels: The longest sequence the decoder has positions for, without the prefix.
        rules: What may follow what; None if everything may.
    """

    upstream: str  # the class of `transformers` that it is loaded as
    lead: str = ""  # what stands before a text when it is tokenised
    window: float = 30.0  # seconds of audio that the model takes at once
    rate: int = RATE
    fixed_length: bool = False  # whether the encoder hears silence after the speech, up to a window of one length
    frame: float = 0.0  # seconds of a frame of the encoder's, where that does not depend on the audio's length

    def __init__(
        self,
        decoder: TransformerDecoder,
        tokenizer: Tokenizer,
        *,
        prefix: Sequence[int],
        suppress: Sequence[int] = (),
        suppress_first: Sequence[int] = (),
        max_labels: int = 224,
        rules: LabelRules | None = None,
    ) -> None:
        self.rules = rules
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.prefix = tuple(prefix)
        self.max_labels = max_labels
        if max_labels < 1:
            raise BadInputError(f"the prompt of {len(prefix)} labels leaves the decoder no room for any output")
        size = decoder.output.weight.shape[0]
        if len(tokenizer.tokens) != size:
            raise BadInputError(f"the tokenizer has {len(tokenizer.tokens)} tokens, the model's output layer {size}")
        self.allowed = _mask(size, suppress, self.device)
        self.allowed_first = _mask(size, [*suppress, *suppress_first], self.device)

    # What a new model must say.

    @abstractmethod
    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Waveforms of 16 kHz to what `encode` takes: features (B, T, D) and their lengths (B,)."""

    @abstractmethod
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states (B, T, D), and a mask (B, T) as `CompactMemory` has it; None if all frames count alike."""

    # What follows.

    @classmethod
    def from_pretrained(
        cls, name: str, options: Any = None, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Loads a hub id or a local folder. Only safetensors are read, and no code of the repository is run."""
        from ilme.adapters.hub import hub_parts

        model, tokenizer, extractor = hub_parts(name, cls.upstream, device, dtype)
        config = model.config
        wrapped = HuggingFaceTokenizer(
            tokenizer, config.vocab_size, config.decoder_start_token_id, config.eos_token_id, lead=cls.lead
        )
        return cls(model, wrapped, options, extractor)  # type: ignore[call-arg]

    @property
    def tokens(self) -> Tokens:
        return self.tokenizer.tokens

    @property
    def device(self) -> torch.device:
        return self.decoder.output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.output.weight.dtype

    @property
    def encoder_width(self) -> int:
        return self.decoder.layers[0].cross_kv.weight.shape[1]

    def pack(self, format: Format = "float32") -> None:
        """Arranges the decoder's weights for the CPU: the same scores in less time (int8: nearly the same).

        Where this build of torch cannot arrange float32, nothing changes.
        """
        if self.device.type != "cpu" or self.dtype != torch.float32:
            raise BadInputError(f"packing is for float32 weights on the CPU, these are {self.dtype} on {self.device}")
        if worth_packing(format):
            self.decoder.pack(format)

    @torch.inference_mode()
    def encode(self, features: Tensor, lengths: Tensor) -> State:
        return self.memory(*self.hidden(features.to(self.device), lengths.to(self.device)))

    @torch.inference_mode()
    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """Keys and values of every layer's cross-attention, computed once per utterance."""
        keys, values = self.decoder.keys_and_values(hidden)
        return {"keys": keys, "values": values, "mask": mask}

    def without_audio(self) -> State:
        """One frame of zeros: each layer adds the bias of its values."""
        return self.memory(torch.zeros(1, 1, self.encoder_width, device=self.device, dtype=self.dtype))

    def language_parameters(self) -> dict[str, Tensor]:
        """The weight matrices that the internal LM uses, too."""
        maps = {f"{i}.{k}": m.weight for i, layer in enumerate(self.decoder.layers) for k, m in enumerate(layer.maps)}
        return {"output": self.decoder.output.weight, **maps}

    @torch.inference_mode()
    def start(self, memory: State) -> tuple[Tensor, State]:
        B = len(memory["keys"][0])
        hidden, cache = self.first(B, attention(memory), memory.get("prefix"))
        ruled = None if self.rules is None else self.rules.start(B).to(self.device)
        return self.log_probabilities(hidden, self.allowed_first, ruled), {"cache": cache, "rules": ruled}

    @torch.inference_mode()
    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        stream = self.decoder.stream(labels[:, None], state["cache"], attention(memory))
        (hidden,), (cache,) = self.decoder.run(stream)
        ruled = self._advance(labels, state)
        return self.log_probabilities(hidden[:, -1], self.allowed, ruled), {"cache": cache, "rules": ruled}

    @torch.inference_mode()
    def step_with(
        self, labels: Tensor, state: State, memory: State, cache: Cache, context: Context, allowed: Tensor
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, Cache]]:
        """`step`, and in the same pass the same labels after another cache with another context.

        Returns the rows (n, V) and states of the step, and the rows, over the units `allowed`, and the cache
        of the other stream. Every weight matrix is read once for both.
        """
        own = self.decoder.stream(labels[:, None], state["cache"], attention(memory))
        other = self.decoder.stream(labels[:, None], cache, context)
        (hidden, passenger), (new, carried) = self.decoder.run(own, other)
        logits = self.decoder.output(torch.cat([hidden[:, -1], passenger[:, -1]])).float()
        n = len(labels)
        ruled = self._advance(labels, state)
        rows, internal = self._normalise(logits[:n], self.allowed, ruled), self._normalise(logits[n:], allowed)
        return (rows, {"cache": new, "rules": ruled}), (internal, carried)

    def first(self, n: int, context: Context, prefix: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Runs the prefix of n sequences, the model's own or one of each (n, P): the last states (n, D), the cache."""
        labels = self.own_prefix(n) if prefix is None else prefix
        (hidden,), (cache,) = self.decoder.run(self.decoder.stream(labels, None, context))
        return hidden[:, -1], cache

    def own_prefix(self, n: int) -> Tensor:
        """The labels before every sequence (n, P)."""
        return torch.tensor(self.prefix, device=self.device).expand(n, -1)

    def teacher_forced(self, labels: Tensor, context: Context) -> Tensor:
        """Logits (n, U + 1, V) of every label and of the end after given labels (n, U), with gradients."""
        whole = torch.cat([self.own_prefix(len(labels)), labels], 1)
        (hidden,), _ = self.decoder.run(self.decoder.stream(whole, None, context))
        return self.decoder.output(hidden[:, len(self.prefix) - 1 :])

    @torch.inference_mode()
    def attended(self, labels: Tensor, memory: State, seconds: float) -> tuple[Tensor, float]:
        """Attention (U + 1, T) of the labels (U,) and the end, over the heads that follow the speech."""
        seen: list[Tensor] = []
        whole = torch.cat([torch.tensor(self.prefix, device=self.device), labels])[None]
        self.decoder.run(self.decoder.stream(whole, None, WatchedAttention(attention(memory), seen)))
        heads = torch.cat(seen)[:, len(self.prefix) - 1 :]  # (layers · H, U + 1, all frames)
        mask, every = memory["mask"], heads.shape[2]
        heard = every if mask is None else int((log_counts(mask[0]) > -torch.inf).sum())
        frame = self.frame or seconds / heard
        frames = min(heard, max(1, math.ceil(seconds / frame)))
        return followed(heads[:, :, :frames].float()), frame

    def log_probabilities(self, hidden: Tensor, allowed: Tensor, ruled: Tensor | None = None) -> Tensor:
        """log softmax over the allowed units (n, V), −∞ for the others; `ruled` is the state of the rules, if any."""
        return self._normalise(self.decoder.output(hidden).float(), allowed, ruled)

    def _normalise(self, logits: Tensor, allowed: Tensor, ruled: Tensor | None = None) -> Tensor:
        logits = logits.add_(allowed)
        if ruled is not None and self.rules is not None:
            logits = self.rules.apply(logits, ruled)
        return logits.log_softmax(dim=-1)

    def _advance(self, labels: Tensor, state: State) -> Tensor | None:
        return None if self.rules is None else self.rules.advance(labels, state["rules"])


def encode_apart(encoder: Any, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
    """What an encoder that padding would change gives for inputs (B, N, …) of these lengths (B,), one by one.

    The states are padded (B, T, D); the mask (B, T) is True where there is one, None where nothing was padded.
    """
    states = [encoder(x[None, :n]).last_hidden_state[0] for x, n in zip(inputs, lengths.tolist(), strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    frames = torch.tensor([len(s) for s in states], device=padded.device)
    if bool((frames == padded.shape[1]).all()):
        return padded, None
    return padded, torch.arange(padded.shape[1], device=padded.device) < frames[:, None]


def attention(memory: State) -> CrossAttention:
    """The cross-attention to a memory that `encode` made."""
    return CrossAttention(memory["keys"], memory["values"], memory["mask"])


def followed(heads: Tensor) -> Tensor:
    """One attention (U, T) out of that of many heads (N, U, T): the mean of those that go along with the labels.

    As in openai-whisper each head's is normalised over the labels, so that frames at which it always looks do not
    count, and smoothed over seven frames.
    """
    normalised = (heads - heads.mean(1, keepdim=True)) / heads.std(1, keepdim=True, correction=0).clamp(min=1e-6)
    wide = min(7, heads.shape[2] - 1 + heads.shape[2] % 2)
    padded = torch.nn.functional.pad(normalised, (wide // 2, wide // 2), mode="reflect") if wide > 1 else normalised
    smooth = padded.unfold(2, wide, 1).median(-1).values
    return smooth[_steady(heads)].mean(0)


def _steady(heads: Tensor) -> Tensor:
    """The six heads that follow best: the frame they look at correlates with the number of the label, and is one."""
    N, U, T = heads.shape
    if U < 3 or T < 3:
        return torch.arange(N, device=heads.device)
    weights = heads / heads.sum(-1, keepdim=True).clamp(min=1e-9)
    frames = torch.arange(T, device=heads.device, dtype=heads.dtype)
    looked = weights @ frames  # (N, U)
    labels = torch.arange(U, device=heads.device, dtype=heads.dtype)
    x, y = looked - looked.mean(1, keepdim=True), labels - labels.mean()
    correlation = (x @ y) / (x.norm(dim=1) * y.norm()).clamp(min=1e-9)
    spread = looked.std(1, correction=0) / T  # of a head that looks everywhere, or at one place, it is near 0
    sharp = weights.amax(-1).mean(1)
    following: Tensor = (correlation.clamp(min=0) * spread * sharp).topk(min(FOLLOWING, N)).indices
    return following


def _mask(size: int, suppress: Sequence[int], device: torch.device) -> Tensor:
    """0 for each unit that may be put out, −∞ for the others (V,)."""
    mask = torch.zeros(size, device=device)
    outside = [i for i in suppress if not 0 <= i < size]
    if outside:
        raise BadInputError(f"cannot suppress id {outside[0]}: the model has {size} output units")
    mask[torch.tensor(sorted(set(suppress)), dtype=torch.long, device=device)] = -torch.inf
    return mask
