"""The model's own decoder as an external LM: its internal LM, trained further on the domain's text.

    P_T(y_u | y_{<u}) = softmax(W h_u(y_{<u}; θ_T) + b)_{y_u}

θ_T starts at θ, the internal LM of the model (its acoustics replaced by a vector, which is trained too), and ends where
it predicts the text. It knows a language before it reads the first line. With the internal LM subtracted, the search
adds the ratio of two states of one network:

    log P_E2E(y|x; θ) + λ_T log P(y; θ_T) − μ log P(y; θ)

Internal LM adaptation (ILMA, arXiv 2110.05354) trains the same weights on text, but inside the model that then listens
with them, held near θ by a Kullback-Leibler term. Here the model that listens stays as it is: nothing can be forgotten,
and λ_T and μ say how far to go, after the training and without repeating it.

    Transformer   the layers and the output's bias; embeddings and output matrix are the model's own, and shared with it
    RNN-T         prediction network, its side of the joint network, and output; the blank's unit becomes the end
    AED           embeddings, decoder LSTM and output
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ilme.adapters.decoder import FeedForward, Layer, Linear, TransformerDecoder, Vectors
from ilme.adapters.hf import TransformerAED
from ilme.errors import BadInputError, CheckpointError
from ilme.ilm.calibration import Calibration
from ilme.ilm.files import check_fingerprint, fingerprint
from ilme.ilm.transformer import zeroed
from ilme.lm.ngram import lm_tokens
from ilme.models.aed import AED
from ilme.models.fused_lm import FusedAED
from ilme.models.lstm import LSTMStack
from ilme.models.packed import worth_packing
from ilme.models.rnnt import RNNT, prediction_network, projected
from ilme.runtime.configs import json_object
from ilme.runtime.formats import Format
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State, map_tensors
from ilme.runtime.tensors import check_finite, has_entry, read_tensors, write_tensors

__all__ = [
    "AttentionDecoderLM",
    "DecoderLM",
    "TransducerDecoderLM",
    "TransformerDecoderLM",
    "decoder_lm",
    "has_open_decoder",
    "is_decoder_lm",
    "load_decoder_lm",
    "save_decoder_lm",
]

VERSION = 1
_ENTRY = "ilme-decoder-lm"
_FINGERPRINT = "fingerprint"
_AGAIN = "`ilme adapt --lm decoder` makes one for this model"
UNSAID = -20.0  # where the bias of a unit starts that the model never puts out: a text may hold it all the same


class DecoderLM(nn.Module, ABC):
    """What the three have in common; each implements `ilme.protocols.TokenScorer`.

    As in `ilme.models.lstm_lm.LSTMLM`, `forward` takes the tokens read (B, U), `sos` first, to the vectors (B, U, D)
    whose products with `output.weight` (V, D), plus `output.bias` (V,), are the logits.
    """

    kind = "decoder"
    sos: int
    output: Any

    def __init__(self, host: Any) -> None:
        super().__init__()
        self.tokens = lm_tokens(host.tokens)

    @property
    def device(self) -> torch.device:
        return self.output.weight.device  # type: ignore[no-any-return]

    @abstractmethod
    def start(self, n: int) -> tuple[Tensor, State]: ...

    @abstractmethod
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]: ...

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, self.tokens.eos]


# --- Transformer ------------------------------------------------------------------------------------------------------


class TransformerDecoderLM(DecoderLM):
    """The layers of a Transformer decoder with a vector per layer in place of the cross-attention.

    It starts as the internal LM `zeroed`, which needs no speech. The state is the cache of keys and values.

    Args:
        host: The model. Its embeddings and output matrix are used where they are.
    """

    def __init__(self, host: TransformerAED) -> None:
        super().__init__(host)
        self.prefix, self.sos = host.prefix, host.prefix[-1]
        self.shared = host.decoder.output
        self.vectors = nn.Parameter(zeroed(host, Calibration()).tensors["vectors"].clone())
        self.bias = nn.Parameter(host.allowed.clamp(min=UNSAID).to(host.dtype))
        self.weights, self.norms = nn.ParameterDict(), nn.ModuleList()
        layers = [self._copied(index, layer) for index, layer in enumerate(host.decoder.layers)]
        self.norms.append(copy.deepcopy(host.decoder.norm))  # type: ignore[arg-type]
        self.decoder = TransformerDecoder(layers, host.decoder.embed, self.norms[-1], self.shared, host.decoder.rotate)
        self.output = _Output(self.shared, self.bias)
        self.requires_grad_(True)

    def _copied(self, index: int, layer: Layer) -> Layer:
        """A layer with weights of its own, but for the cross-attention, which never runs."""
        forward: FeedForward = copy.copy(layer.forward)
        forward.first = self._map(f"{index}_forward_first", layer.forward.first)
        forward.second = self._map(f"{index}_forward_second", layer.forward.second)
        norms = [copy.deepcopy(layer.self_norm), copy.deepcopy(layer.forward_norm)]
        self.norms.extend(norms)
        return replace(
            layer,
            self_norm=norms[0],
            self_qkv=self._map(f"{index}_self_qkv", layer.self_qkv),
            self_out=self._map(f"{index}_self_out", layer.self_out),
            forward_norm=norms[1],
            forward=forward,
        )

    def _map(self, name: str, linear: Linear) -> Linear:
        self.weights[f"{name}_weight"] = nn.Parameter(linear.weight.clone())
        if linear.bias is None:
            return Linear(self.weights[f"{name}_weight"], None)
        self.weights[f"{name}_bias"] = nn.Parameter(linear.bias.clone())
        return Linear(self.weights[f"{name}_weight"], self.weights[f"{name}_bias"])

    def pack(self, format: Format) -> None:
        """Arranges its own maps for the CPU; the output matrix is arranged with the host."""
        if worth_packing(format):
            for layer in self.decoder.layers:
                for linear in (layer.self_qkv, layer.self_out, layer.forward.first, layer.forward.second):
                    linear.pack(format)

    def forward(self, inputs: Tensor) -> Tensor:
        before = torch.tensor(self.prefix[:-1], dtype=torch.long, device=inputs.device).expand(len(inputs), -1)
        stream = self.decoder.stream(torch.cat([before, inputs], 1), None, Vectors(self.vectors))
        (hidden,), _ = self.decoder.run(stream)
        return hidden[:, len(self.prefix) - 1 :]

    @torch.inference_mode()
    def start(self, n: int) -> tuple[Tensor, State]:
        prefix = torch.tensor([self.prefix], device=self.device)
        rows, cache = self._rows(prefix, None)
        return rows.expand(n, -1), map_tensors(lambda x: x.expand(n, *x.shape[1:]), cache)

    @torch.inference_mode()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self._rows(labels[:, None], state)

    def _rows(self, labels: Tensor, cache: State) -> tuple[Tensor, State]:
        (hidden,), (cache,) = self.decoder.run(self.decoder.stream(labels, cache, Vectors(self.vectors)))
        return (self.shared(hidden[:, -1]) + self.bias).float().log_softmax(-1), cache


class _Output:
    """The host's output matrix, and its bias plus one that is learned."""

    def __init__(self, shared: Linear, learned: Tensor) -> None:
        self.shared, self.learned = shared, learned

    @property
    def weight(self) -> Tensor:
        return self.shared.weight

    @property
    def bias(self) -> Tensor:
        return self.learned if self.shared.bias is None else self.learned + self.shared.bias


# --- the paper's networks ---------------------------------------------------------------------------------------------


class TransducerDecoderLM(DecoderLM):
    """J(v + g_u) of an RNN-T, with the output of the blank, which no LM needs, as that of the end.

    It starts as the internal LM `removed`: v = 0. The end starts with a logit of 0 and is learned from nothing.
    """

    def __init__(self, host: RNNT) -> None:
        super().__init__(host)
        config, blank = host.config, host.predictor.sos
        self.sos = blank
        self.predictor = prediction_network(config, len(host.tokens), blank)
        self.head = projected(self.predictor.outputs, config.projection, config.joint)
        self.output = nn.Linear(config.joint, len(host.tokens))
        self.vector = nn.Parameter(torch.zeros(config.joint))
        for own, theirs in ((self.predictor, host.predictor), (self.head, host.prediction_head)):
            own.load_state_dict(theirs.state_dict())
        self.output.load_state_dict(host.output.state_dict())
        with torch.no_grad():
            self.output.weight[self.tokens.eos] = 0
            self.output.bias[self.tokens.eos] = 0
        self.to(host.device)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.vector + self.head(self.predictor(inputs[:, 1:])))  # it reads its own sos

    def start(self, n: int) -> tuple[Tensor, State]:
        return self._rows(*self.predictor.start(n))

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self._rows(*self.predictor.step(labels, state))

    def _rows(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        return log_softmax(self.output(torch.tanh(self.vector + self.head(h)))), state


class AttentionDecoderLM(DecoderLM):
    """The decoder LSTM of an AED, which reads e_{u−1} + v. It starts as the internal LM `removed`: v = 0."""

    def __init__(self, host: AED) -> None:
        super().__init__(host)
        config, width = host.config, host.embedding.embedding_dim
        self.sos = host.sos
        self.embedding = nn.Embedding(len(host.tokens), width)
        self.rnn = LSTMStack(width, config.decoder_hidden, config.decoder_layers, config.dropout)
        self.output = nn.Linear(config.decoder_hidden, len(host.tokens))
        self.dropout = nn.Dropout(config.dropout)
        self.vector = nn.Parameter(torch.zeros(width))
        for name in ("embedding", "rnn", "output"):
            getattr(self, name).load_state_dict(getattr(host, name).state_dict())
        self.to(host.device)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.rnn(self.dropout(self.embedding(inputs) + self.vector))  # type: ignore[no-any-return]

    def start(self, n: int) -> tuple[Tensor, State]:
        return self.score(torch.full((n,), self.sos, device=self.device), self.rnn.zero_state(n))

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        h, state = self.rnn.step(self.embedding(labels), state, self.vector.expand(len(labels), -1))
        return log_softmax(self.output(h)), state


# --- making, saving, loading ------------------------------------------------------------------------------------------


def has_open_decoder(host: Any) -> bool:
    """Whether gradients can pass through the model's decoder: not in ONNX, nor in a model that only has its methods.

    A decoder with an LM inside is none of these: without that LM it is another.
    """
    return isinstance(host, TransformerAED | RNNT | AED) and not isinstance(host, FusedAED)


def decoder_lm(host: Any) -> DecoderLM:
    """The decoder of a model as an LM that has not been trained further yet."""
    if isinstance(host, TransformerAED):
        return TransformerDecoderLM(host).eval()
    if isinstance(host, RNNT):
        return TransducerDecoderLM(host).eval()
    if isinstance(host, AED) and has_open_decoder(host):
        return AttentionDecoderLM(host).eval()
    raise BadInputError(
        f"the decoder of this {getattr(host, 'kind', type(host).__name__)!r} cannot be trained: its weights are not "
        "open, as in ONNX, or it has an LM inside. Load the model from its own weights, or take --lm ngram or --lm lstm"
    )


def save_decoder_lm(file: Path, lm: DecoderLM, host: Any) -> None:
    """Writes all weights that differ from the host's, and a fingerprint of the host."""
    about = {"version": VERSION, "kind": host.kind, "tokens": len(host.tokens)}
    tensors = {name: value.detach().float() for name, value in lm.state_dict().items()}
    write_tensors(file, {**tensors, _FINGERPRINT: fingerprint(host)}, {_ENTRY: json.dumps(about)})


def is_decoder_lm(name: str | Path) -> bool:
    """Whether it is a file that `save_decoder_lm` wrote."""
    return has_entry(Path(name), _ENTRY)


def load_decoder_lm(file: str | Path, host: Any) -> DecoderLM:
    """Reads what `save_decoder_lm` wrote, for the model that it was made from."""
    tensors, header = read_tensors(Path(file))
    check_finite(file, tensors)
    about = json_object(header.get(_ENTRY, "{}"), f"{file}, entry {_ENTRY!r} of its header,")
    if about.get("version") != VERSION:
        raise CheckpointError(
            f"{file} has format version {str(about.get('version'))[:20]}, this program reads {VERSION}; update ilme"
        )
    found, expected = (about.get("kind"), about.get("tokens")), (getattr(host, "kind", ""), len(host.tokens))
    if found != expected:
        raise CheckpointError(
            f"{file} is the decoder of another model: (kind, tokens) is {found}, this one's is {expected}; {_AGAIN}"
        )
    lm = decoder_lm(host)
    mark = tensors.pop(_FINGERPRINT, None)
    if mark is None:
        raise CheckpointError(f"{file} is damaged: it does not say whose decoder it is; {_AGAIN}")
    check_fingerprint(file, mark, host, _AGAIN)
    wanted = {name: value.shape for name, value in lm.state_dict().items()}
    if {name: value.shape for name, value in tensors.items()} != wanted:
        raise CheckpointError(f"{file} does not fit this model's decoder; {_AGAIN}")
    lm.load_state_dict(tensors)
    return lm.requires_grad_(False)
