"""The internal LM of a Transformer decoder: the decoder with its cross-attention replaced.

    P_ILM(y_u | y_{<u}) = softmax(W h_u),   where in each layer the cross-attention c(x) is replaced by ĉ(x)

and ĉ knows no audio. The paper removes the acoustic term altogether (Eqs. 31–33). A Transformer that never
ran without its cross-attention answers that with nearly uniform noise, so there are six ways to replace it:

    removed        ĉ = 0
    zeroed         the encoder's output is zero: each layer adds the bias of its values, W_o b_v + b_o
    silence        cross-attention to the encoder's output of silence
    mean-encoder   cross-attention to the encoder's output averaged over utterances
    mean-context   the cross-attention's output averaged over utterances and labels, one vector per layer
    learned        one vector (and, if asked for, a tiny network) per layer, trained to predict transcripts

Which of them is best is decided by the word error rate on dev speech, not here. The decoder state of the internal LM is
its own: the state of the acoustic pass has heard the audio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ilme.adapters.decoder import Context, Layer, Vectors
from ilme.adapters.hf import RATE, TransformerAED, attention
from ilme.errors import CheckpointError
from ilme.ilm.calibration import Calibration, Estimator
from ilme.ilm.hosted import HostedLM
from ilme.runtime.formats import Format
from ilme.runtime.state import State, map_tensors

__all__ = ["LearnedContext", "TransformerInternalLM", "estimators", "restored"]

GROUP = 8  # states of silence that count as one in 8 bits; of one window they are nearly alike
FLOOR = -1e4  # the log-probability of a suppressed unit; finite, so that μ·ILM never makes ∞ − ∞


class TransformerInternalLM(HostedLM):
    """The internal LM of `host`; implements `ilme.protocols.InternalLM` and `SharedStep`.

    Args:
        host: The model whose internal LM this is.
        context: What takes the place of the cross-attention.
        how: How it was estimated.
        tensors: What `context` is made of, for `restored`.
    """

    host: TransformerAED
    scale = 1.0

    def __init__(self, host: TransformerAED, context: Context, how: str, tensors: dict[str, Tensor]) -> None:
        self.host, self.context, self.how, self.tensors = host, context, how, tensors
        self._allowed = host.allowed.clamp(min=FLOOR)
        self._allowed_first = host.allowed_first.clamp(min=FLOOR)

    @torch.inference_mode()
    def start(self, n: int) -> tuple[Tensor, State]:
        hidden, cache = self.host.first(1, self.context)
        rows = self.host.log_probabilities(hidden, self._allowed_first)
        return rows.expand(n, -1), map_tensors(lambda x: x.expand(n, *x.shape[1:]), cache)

    @torch.inference_mode()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        decoder = self.host.decoder
        (hidden,), (cache,) = decoder.run(decoder.stream(labels[:, None], state, self.context))
        return self.host.log_probabilities(hidden[:, -1], self._allowed), cache

    def step_both(
        self, labels: Tensor, state: State, internal: State, memory: State
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one pass over the weights."""
        return self.host.step_with(labels, state, memory, internal, self.context, self._allowed)

    def pack(self, format: Format) -> None:
        """As its model is packed: in 8 bits it attends to a fixed window's states in groups, see `_grouped`."""
        if self.host.fixed_length and "hidden" in self.tensors:
            hidden = self.tensors["hidden"]
            states, counts = _grouped(hidden) if format == "int8" else (hidden, None)
            self.context = attention(self.host.memory(states[None], counts))


class LearnedContext(nn.Module):
    """ĉ_l(x) = v_l + U_l gelu(D_l norm₂(x)): a vector per layer, and with rank > 0 a tiny network.

    Args:
        vectors: Where v starts (layers, D).
        rank: Units of the tiny network in each layer; U starts at zero.
    """

    def __init__(self, vectors: Tensor, rank: int = 0) -> None:
        super().__init__()
        layers, width = vectors.shape
        self.rank = rank
        self.vectors = nn.Parameter(vectors.clone())
        self.down = nn.Parameter(torch.randn(layers, rank, width, device=vectors.device) / width**0.5)
        self.up = nn.Parameter(torch.zeros(layers, width, rank, device=vectors.device))

    def forward(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        if not self.rank:
            return self.vectors[index]
        inner = F.gelu(F.linear(layer.cross_norm(x), self.down[index]))
        return self.vectors[index] + F.linear(inner, self.up[index])


def removed(model: TransformerAED, _: Calibration) -> TransformerInternalLM:
    """ĉ = 0: what the paper does."""
    layers = model.decoder.layers
    vectors = torch.zeros(len(layers), model.decoder.width, device=model.device, dtype=model.dtype)
    return TransformerInternalLM(model, Vectors(vectors), "removed", {"vectors": vectors})


@torch.no_grad()
def zeroed(model: TransformerAED, _: Calibration) -> TransformerInternalLM:
    """Encoder output zero. Every frame has then the same value b_v, so the attention's weights do not matter."""
    nothing = torch.zeros(1, 1, model.encoder_width, device=model.device, dtype=model.dtype)
    vectors = torch.stack([single_frame(layer, nothing) for layer in model.decoder.layers])
    return TransformerInternalLM(model, Vectors(vectors), "zeroed", {"vectors": vectors})


@torch.inference_mode()
def silence(model: TransformerAED, _: Calibration) -> TransformerInternalLM:
    """Cross-attention to silence: a full window for a model that always takes one, else three seconds."""
    import numpy as np

    seconds = model.window if model.fixed_length else min(3.0, model.window)
    features, lengths = model.features([np.zeros(int(seconds * RATE), dtype=np.float32)])
    hidden = model.hidden(features, lengths)[0]
    return _attending(model, hidden, "silence")


@torch.inference_mode()
def mean_encoder(model: TransformerAED, calibration: Calibration) -> TransformerInternalLM:
    """Cross-attention to the mean encoder output.

    A model with a fixed window is averaged frame by frame, one of variable length over all frames: then the
    memory is one frame, and its attention a constant.
    """
    hidden = calibration.encoded
    if model.fixed_length:
        mean = torch.stack([h.to(model.device, torch.float32) for h in hidden]).mean(0)
    else:
        frames = torch.cat([h.to(model.device, torch.float32) for h in hidden])
        mean = frames.mean(0, keepdim=True)
    return _attending(model, mean[None].to(model.dtype), "mean-encoder")


@torch.inference_mode()
def mean_context(model: TransformerAED, calibration: Calibration) -> TransformerInternalLM:
    """The cross-attention's output of each layer, averaged over every label of every utterance."""
    layers = model.decoder.layers
    total = torch.zeros(len(layers), model.decoder.width, device=model.device, dtype=torch.float64)
    count = 0
    for hidden, labels in zip(calibration.encoded, calibration.labels, strict=True):
        recorder = _Recorder(attention(model.memory(hidden[None].to(model.device, model.dtype))), total)
        given = torch.tensor([list(labels)], dtype=torch.long, device=model.device)
        model.teacher_forced(given, recorder)
        count += len(model.prefix) + len(labels)
    vectors = (total / count).to(model.dtype)
    return TransformerInternalLM(model, Vectors(vectors), "mean-context", {"vectors": vectors})


@dataclass(frozen=True)
class _Recorder:
    """Passes a context on and adds its outputs, summed over sequences and labels, to `total` (layers, D)."""

    context: Context
    total: Tensor

    def __call__(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        out = self.context(index, layer, x)
        self.total[index] += out.double().sum((0, 1))
        return out


def single_frame(layer: Layer, hidden: Tensor) -> Tensor:
    """The cross-attention's output (D,) when all frames are the one in `hidden` (1, 1, D): W_o v + b_o."""
    value = layer.cross_kv(hidden).chunk(2, dim=-1)[1]
    return layer.cross_out(value)[0, 0]


def _grouped(hidden: Tensor) -> tuple[Tensor, Tensor]:
    """States (T, D) in groups of eight: the mean of each, and the logarithms of how many it stands for (1, groups)."""
    whole = len(hidden) // GROUP * GROUP
    means = hidden[:whole].view(-1, GROUP, hidden.shape[1]).mean(1)
    counts = torch.zeros(len(means) + len(hidden) - whole, device=hidden.device)
    counts[: len(means)] = math.log(GROUP)
    return torch.cat([means, hidden[whole:]]), counts[None]


def _attending(model: TransformerAED, hidden: Tensor, name: str) -> TransformerInternalLM:
    """An internal LM that attends to a fixed encoder output (1, T, D)."""
    if hidden.shape[1] == 1:
        vectors = torch.stack([single_frame(layer, hidden) for layer in model.decoder.layers])
        return TransformerInternalLM(model, Vectors(vectors), name, {"vectors": vectors})
    return TransformerInternalLM(model, attention(model.memory(hidden)), name, {"hidden": hidden[0].clone()})


def learned(model: TransformerAED, calibration: Calibration) -> TransformerInternalLM:
    """Vectors trained from the mean context on the calibration's transcripts, see `ilme.ilm.learned_context`."""
    from ilme.ilm.learned_context import learn_context

    return learn_context(model, calibration, options=calibration.learning)


def estimators(model: TransformerAED) -> dict[str, Estimator]:
    """The ways that this model has."""
    return {
        "removed": Estimator(removed),
        "zeroed": Estimator(zeroed),
        "silence": Estimator(silence),
        "mean-encoder": Estimator(mean_encoder, "speech"),
        "mean-context": Estimator(mean_context, "speech"),
        "learned": Estimator(learned, "speech"),
    }


def restored(model: TransformerAED, how: str, tensors: dict[str, Tensor], scale: float) -> TransformerInternalLM:
    """Makes an internal LM again from its tensors; a bare vector takes the place of every layer's cross-attention."""
    placed = {key: value.to(model.device, model.dtype) for key, value in tensors.items()}
    if "hidden" in placed:
        width = placed["hidden"].shape[-1]
        if width != model.encoder_width:
            raise CheckpointError(f"this internal LM was made for width {width}, the model has {model.encoder_width}")
        return _attending(model, placed["hidden"][None], how)
    shape = (len(model.decoder.layers), model.decoder.width)
    vectors = placed.get("vectors", placed.get("vector"))
    if vectors is None or vectors.shape not in (shape, shape[1:]):
        found = {key: tuple(value.shape) for key, value in placed.items()}
        raise CheckpointError(f"this internal LM belongs to another model: expected vectors of {shape}, found {found}")
    vectors = vectors.expand(shape)
    context: Context = Vectors(vectors)
    if "down" in placed:
        network = LearnedContext(vectors, rank=placed["down"].shape[1])
        network.load_state_dict(placed)
        context = network.requires_grad_(False)
    return TransformerInternalLM(model, context, how, placed if "down" in placed else {"vectors": vectors})
