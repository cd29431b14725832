"""A Transformer decoder, label by label, over weights that someone else trained.

One layer of every model here is pre-norm:

    x ← x + SelfAttention(norm₁ x)     keys and values of the earlier labels are kept (the cache)
    x ← x + c(x)                       c is CrossAttention(norm₂ x), or what stands in for it
    x ← x + FeedForward(norm₃ x)

An end-to-end model and its internal LM are the same layers with another c. So both run as *streams* through
one pass: the linear maps see the rows of all streams at once, and only the two attentions are done stream by stream.

Shapes: n label sequences, q new labels of each, L labels in all, B utterances, T encoder frames, H heads, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ilme.models.packed import has_bfloat16, packed_product
from ilme.runtime.formats import Format

__all__ = [
    "Cache",
    "Context",
    "CrossAttention",
    "FeedForward",
    "Layer",
    "Linear",
    "Stream",
    "TransformerDecoder",
    "Vectors",
    "WatchedAttention",
    "log_counts",
    "position",
]

Cache = list[tuple[Tensor, Tensor]]  # per layer: keys and values (n, H, L, D/H)
Rotation = Callable[[Tensor, int], Tensor]  # turns queries or keys (n, H, q, D/H) that start at a position


class Linear:
    """y = W x + b, weights detached from the module they came from.

    `pack` arranges the weights for the CPU once; without gradients the packed product is then used.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._product: Callable[[Tensor], Tensor] | None = None
        self._format: Format | None = None

    @classmethod
    def of(cls, *modules: nn.Linear) -> Linear:
        """The maps of the modules, stacked into one."""
        weights = [m.weight.detach() for m in modules]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        if all(m.bias is None for m in modules):
            return cls(weight, None)
        biases = [weight.new_zeros(m.out_features) if m.bias is None else m.bias.detach() for m in modules]
        return cls(weight, torch.cat(biases) if len(biases) > 1 else biases[0])

    def pack(self, format: Format, many: bool = False) -> None:
        """See `packed_product`."""
        if format != self._format:  # recognisers that share a model each ask for it
            self._product, self._format = packed_product(self.weight, self.bias, format, many), format

    def __call__(self, x: Tensor) -> Tensor:
        if self._product is None or x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        if x.dim() == 2:
            return self._product(x)
        return self._product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class FeedForward:
    """W₂ f(W₁ x + b₁) + b₂; a gated one splits W₁ x + b₁ into u and g and takes u·f(g)."""

    def __init__(
        self, first: nn.Linear, activation: Callable[[Tensor], Tensor], second: nn.Linear, gated: bool = False
    ) -> None:
        self.first, self.second = Linear.of(first), Linear.of(second)
        self.activation = activation
        self.gated = gated

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.first(x)
        if not self.gated:
            return self.second(self.activation(inner))
        value, gate = inner.chunk(2, dim=-1)
        return self.second(value * self.activation(gate))


@dataclass(frozen=True)
class Layer:
    """The weights of one pre-norm decoder layer.

    Attributes:
        self_norm, self_qkv, self_out: Self-attention; queries, keys and values are one map.
        cross_norm, cross_q, cross_kv, cross_out: Cross-attention; keys and values are one map.
        forward_norm, forward: The feed-forward block.
        heads: Attention heads.
        scale: Factor on the attention scores, usually (D/H)^−½.
    """

    self_norm: nn.Module
    self_qkv: Linear
    self_out: Linear
    cross_norm: nn.Module
    cross_q: Linear
    cross_kv: Linear
    cross_out: Linear
    forward_norm: nn.Module
    forward: FeedForward
    heads: int
    scale: float

    @property
    def maps(self) -> list[Linear]:
        """Every linear map that runs once per label."""
        forward = [self.forward.first, self.forward.second]
        return [self.self_qkv, self.self_out, self.cross_q, self.cross_out, *forward]

    def split(self, x: Tensor) -> Tensor:
        """(n, q, D) to (n, H, q, D/H)."""
        n, q, width = x.shape
        return x.view(n, q, self.heads, width // self.heads).transpose(1, 2)

    def keys_and_values(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the cross-attention needs of the encoder's output (B, T, D): keys and values (B, H, T,
        D/H).
        """
        keys, values = self.cross_kv(hidden).chunk(2, dim=-1)
        return self.split(keys).contiguous(), self.split(values).contiguous()


class Context(Protocol):
    """What each layer adds where the cross-attention stands."""

    def __call__(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        """The addition to x (n, q, D), broadcastable to it."""
        ...


@dataclass(frozen=True)
class CrossAttention:
    """Attention to an encoder's output, whose keys and values are computed once and never copied per hypothesis.

    The n / B sequences of an utterance stand together: they are so many queries into the one memory of that utterance.

    Attributes:
        keys, values: Per layer (B, H, T, D/H); in bfloat16 a step reads half as much.
        mask: True where a frame may be attended to (B, T), or the logarithm of how much it counts; None if all do.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    mask: Tensor | None = None

    def __call__(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        n, q, _ = x.shape
        keys, values = self.keys[index], self.values[index]
        utterances = len(keys)
        query = layer.split(layer.cross_q(layer.cross_norm(x)).view(utterances, n // utterances * q, -1))
        mask = None if self.mask is None else self.mask[:, None, None, :]
        if keys.dtype == query.dtype:
            mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=layer.scale)
        else:
            mixed = attend_rounded(query * layer.scale, keys, values, mask)
        return layer.cross_out(mixed.transpose(1, 2).reshape(n, q, -1))


@dataclass(frozen=True)
class WatchedAttention:
    """Cross-attention to the memory of one utterance that also notes where it looks.

    Attributes:
        attention: The cross-attention.
        seen: Gets the attention of each layer (H, q, T).
    """

    attention: CrossAttention
    seen: list[Tensor]

    def __call__(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        query = layer.split(layer.cross_q(layer.cross_norm(x)))[0]
        scores = query @ self.attention.keys[index][0].transpose(1, 2).to(query.dtype) * layer.scale
        if self.attention.mask is not None:
            scores = scores + log_counts(self.attention.mask[0])
        self.seen.append(scores.softmax(-1))
        return self.attention(index, layer, x)


@dataclass(frozen=True)
class Vectors:
    """A constant per layer (layers, D) in place of the cross-attention's output; it does not depend on any audio."""

    vectors: Tensor

    def __call__(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        return self.vectors[index]


@dataclass(frozen=True)
class Stream:
    """Label sequences that go through the layers together.

    Attributes:
        x: The embedded new labels (n, q, D).
        cache: Keys and values of the earlier labels; None at the start.
        context: What the layers add where the cross-attention stands.
    """

    x: Tensor
    cache: Cache | None
    context: Context


class TransformerDecoder:
    """The layers, the embedding before them and the output map after them.

    Args:
        layers: The layers.
        embed: Labels (n, q) and the position of the first of them to their embeddings (n, q, D).
        norm: The normalisation after the last layer.
        output: The map to the logits.
        rotate: Rotary position embedding of self-attention's queries and keys; None for a model without.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        embed: Callable[[Tensor, int], Tensor],
        norm: Callable[[Tensor], Tensor],
        output: Linear,
        rotate: Rotation | None = None,
    ) -> None:
        self.layers = list(layers)
        self.embed = embed
        self.norm = norm
        self.output = output
        self.rotate = rotate
        self.rounded = False  # whether keys and values of encoder outputs are kept in bfloat16

    @property
    def width(self) -> int:
        return self.output.weight.shape[1]

    def pack(self, format: Format) -> None:
        """Arranges the weights for the CPU, see `ilme.models.packed`."""
        for linear in (self.output, *(m for layer in self.layers for m in layer.maps)):
            linear.pack(format)
        for layer in self.layers:
            layer.cross_kv.pack(format, many=True)
        self.rounded = format in ("int8", "bfloat16") and has_bfloat16()

    def keys_and_values(self, hidden: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What every layer's cross-attention needs of the encoder's output (B, T, D)."""
        pairs = [layer.keys_and_values(hidden) for layer in self.layers]
        if self.rounded:
            pairs = [(k.bfloat16(), v.bfloat16()) for k, v in pairs]
        return [k for k, _ in pairs], [v for _, v in pairs]

    def stream(self, labels: Tensor, cache: Cache | None, context: Context) -> Stream:
        """A stream of the new labels (n, q) after those in the cache."""
        return Stream(self.embed(labels, position(cache)), cache, context)

    def run(self, *streams: Stream) -> tuple[list[Tensor], list[Cache]]:
        """The streams' last hidden states (n, q, D) before the output map, and their caches with the new labels."""
        q = streams[0].x.shape[1]
        if any(s.x.shape[1] != q for s in streams):
            raise ValueError("streams that share a pass must bring the same number of new labels")
        sizes = [len(s.x) for s in streams]
        x = _join([s.x for s in streams])
        caches: list[Cache] = [[] for _ in streams]
        for index, layer in enumerate(self.layers):
            rows = _split(layer.self_qkv(layer.self_norm(x)), sizes)
            mixed = []
            for stream, cache, qkv in zip(streams, caches, rows, strict=True):
                out, entry = self._self_attention(layer, qkv, stream.cache[index] if stream.cache else None)
                mixed.append(out)
                cache.append(entry)
            x = x + layer.self_out(_join(mixed))
            parts = _split(x, sizes)
            contexts = [s.context(index, layer, part) for s, part in zip(streams, parts, strict=True)]
            x = _join([part + context for part, context in zip(parts, contexts, strict=True)])
            x = x + layer.forward(layer.forward_norm(x))
        return _split(self.norm(x), sizes), caches

    def _self_attention(
        self, layer: Layer, qkv: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attention of the new labels (n, q, 3D) to themselves and the past; the cache entry with them in it."""
        n, q, _ = qkv.shape
        query, key, value = (layer.split(part) for part in qkv.chunk(3, dim=-1))
        if self.rotate is not None:
            start = 0 if past is None else past[0].shape[2]
            query, key = self.rotate(query, start), self.rotate(key, start)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        mask = None
        if q > 1:
            length = key.shape[2]
            mask = torch.ones(q, length, dtype=torch.bool, device=qkv.device).tril(length - q)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=layer.scale)
        return mixed.transpose(1, 2).reshape(n, q, -1), (key, value)


def attend_rounded(query: Tensor, keys: Tensor, values: Tensor, added: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ + added) V (B, H, q, D/H) for keys and values in bfloat16; sums and softmax are float32's."""
    B, H, q, width = query.shape
    rounded = query.to(keys.dtype).reshape(B * H, q, width)
    scores = torch.bmm(rounded, keys.view(B * H, -1, width).transpose(1, 2))
    if added is not None:
        scores = (scores.view(B, H, q, -1) + log_counts(added).to(scores.dtype)).view(B * H, q, -1)
    mixed = torch.bmm(scores.softmax(-1), values.view(B * H, -1, width))
    return mixed.to(query.dtype).view(B, H, q, width)


def log_counts(mask: Tensor) -> Tensor:
    """The logarithms of how much frames count; a mask says of each whether it counts at all."""
    return mask.float().log() if mask.dtype == torch.bool else mask


def position(cache: Cache | None) -> int:
    """How many labels a cache holds."""
    return cache[0][0].shape[2] if cache else 0


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _split(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [x] if len(sizes) == 1 else list(x.split_with_sizes(sizes))
