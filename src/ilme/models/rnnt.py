"""The paper's RNN transducer: encoder, prediction network, joint network (Section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.models.encoder import EncoderConfig, LSTMEncoder, ctc_layer
from ilme.models.lstm import LSTMStack
from ilme.models.speech import SpeechNetwork
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["PRESETS", "RNNT", "RNNTConfig", "factorised_logits", "prediction_network", "projected"]

LONGEST_DURATION = 64  # frames


@dataclass(frozen=True)
class RNNTConfig:
    """Shape of the RNN-T.

    Attributes:
        encoder: The acoustic encoder.
        prediction: `lstm` reads all labels so far; `stateless` sees the last `context` labels only.
        embedding: Dimension of a label's embedding.
        prediction_hidden: Units of each prediction LSTM layer.
        prediction_layers: Number of prediction LSTM layers.
        context: Labels that a stateless prediction network sees.
        projection: Dimension to which LayerNorm'ed encoder and prediction outputs are projected.
        joint: Dimension of the joint network's hidden layer.
        ctc: Add a CTC output layer on the encoder, for an auxiliary loss that finds alignments early.
        hat: Blank by a sigmoid and labels by a softmax of their own (HAT), so that the internal LM is exact.
        durations: Frames that one label or blank may last, such as [0, 1, 2, 3, 4]: a TDT; empty for an RNN-T.
        dropout: In the prediction network; the encoder has its own.
    """

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    prediction: Literal["lstm", "stateless"] = "lstm"
    embedding: int = 1024
    prediction_hidden: int = 1024
    prediction_layers: int = 2
    context: int = 2
    projection: int = 1024
    joint: int = 1024
    ctc: bool = False
    hat: bool = False
    durations: tuple[int, ...] = ()
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.prediction not in ("lstm", "stateless"):
            raise BadInputError(f"prediction must be 'lstm' or 'stateless', got {self.prediction!r}")
        if self.context < 1:
            raise BadInputError(f"context must be at least 1 label, got {self.context}")
        if self.durations and self.hat:
            raise BadInputError("hat and durations are two kinds of transducer: take one")
        frames = self.durations
        if frames and (len(set(frames)) < len(frames) or min(frames) < 0 or not 1 <= max(frames) <= LONGEST_DURATION):
            raise BadInputError(
                f"durations must be different numbers of frames from 0 to {LONGEST_DURATION}, one of them above 0, got "
                f"{list(frames)}"
            )


PRESETS: dict[str, RNNTConfig] = {
    "paper": RNNTConfig(),
    "small": RNNTConfig(
        encoder=EncoderConfig(hidden=256, layers=4, bidirectional=True, projection=320, time_reduction=2),
        embedding=256,
        prediction_hidden=512,
        prediction_layers=1,
        projection=320,
        joint=512,
    ),
    "tiny": RNNTConfig(
        encoder=EncoderConfig(hidden=48, layers=2, dropout=0.0),
        embedding=32,
        prediction_hidden=48,
        prediction_layers=1,
        projection=48,
        joint=64,
        dropout=0.0,
    ),
}


class RNNT(SpeechNetwork):
    """P(ỹ_i | x, y) = softmax(J(f_t + g_u)); implements `ilme.protocols.Transducer`.

    With `hat` the distribution is factorised (Variani et al. 2020), z the output layer's numbers:

        P(blank | x, y) = σ(z_blank),   P(v | x, y) = (1 − σ(z_blank)) softmax(z without blank)_v

    which is the softmax of logits that are z but for the blank's, z_blank + log Σ_{v ≠ blank} exp z_v. So searches see
    logits as of any transducer, and the labels' softmax without f is the internal LM that the factorisation defines.

    Legend: B utterances, n label sequences, T frames, U labels, J joint dimension, V output units, blank included.
    """

    kind = "rnnt"
    capturable = True  # its steps can be recorded in a CUDA graph

    def __init__(self, config: RNNTConfig, tokens: Tokens) -> None:
        super().__init__()
        if tokens.blank is None:
            raise BadInputError("a transducer needs a token inventory with a blank")
        self.config, self.tokens = config, tokens
        self.encoder = LSTMEncoder(config.encoder)
        self.predictor = prediction_network(config, len(tokens), tokens.blank)
        self.encoder_head = projected(config.encoder.outputs, config.projection, config.joint)
        self.prediction_head = projected(self.predictor.outputs, config.projection, config.joint)
        self.output = nn.Linear(config.joint, len(tokens))
        self.ctc = ctc_layer(config.encoder.outputs, tokens) if config.ctc else None

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """f_t = W_e h_enc_t + b_e   (Eq. 21): (B, T, features) to (B, T', J)."""
        h, lengths = self.encoder(features, lengths)
        return self.encoder_head(h), lengths

    @property
    def streams(self) -> bool:
        """Whether audio can be searched as it comes: the encoder reads in one direction, and so does the frontend."""
        own = self._frontend
        return self.encoder.streams and own is not None and own.kind == "kaldi" and own.normalisation != "utterance"

    def encode_on(self, features: Tensor, state: State, last: bool) -> tuple[Tensor, State]:
        """f_t of the next frames of an utterance: (1, T, features) to (1, T', J), and what comes after them needs."""
        h, state = self.encoder.read_on(features, state, last)
        return self.encoder_head(h), state

    def start(self, n: int) -> tuple[Tensor, State]:
        """g_0 (n, J), of the empty sequence."""
        h, state = self.predictor.start(n)
        return self.prediction_head(h), state

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """g_u = W_p h_pred_u + b_p   (Eq. 22), after one more label: (n,) to (n, J)."""
        h, state = self.predictor.step(labels, state)
        return self.prediction_head(h), state

    def predict_all(self, labels: Tensor) -> Tensor:
        """g_0 … g_U (B, U+1, J) for given labels (B, U): the same numbers as start and predict, in one pass."""
        return self.prediction_head(self.predictor(labels))  # type: ignore[no-any-return]

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        """z = J(f + g) = W_j tanh(f + g) + b_j   (Eqs. 1, 2, 23); without f, J(g)   (Eq. 24)."""
        z = self.output(torch.tanh(g if f is None else f + g))
        return factorised_logits(z, self.tokens.blank or 0) if self.config.hat else z

    def join_some(self, f: Tensor, g: Tensor, units: Tensor) -> Tensor:
        """The logits of some output units only: f and g (n, J), units (m,), to (n, m).

        With `hat` the blank's holds these units alone: log P(blank) that is made from it is a little too small.
        """
        weight, bias = self.output.weight, self.output.bias
        z = nn.functional.linear(torch.tanh(f + g), weight[units], bias[units])
        return _factorised(z, units == (self.tokens.blank or 0)) if self.config.hat else z

    def language_parameters(self) -> dict[str, nn.Parameter]:
        """The weights that the internal LM uses, too: all but those that only audio passes through."""
        return {n: p for n, p in self.named_parameters() if not n.startswith(("encoder.", "encoder_head.", "ctc."))}

    def components(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {
            "encoder": nn.ModuleList([self.encoder, self.encoder_head]),
            "prediction": nn.ModuleList([self.predictor, self.prediction_head]),
            "output": self.output,
        }
        return parts if self.ctc is None else {**parts, "ctc": self.ctc}


class LSTMPrediction(nn.Module):
    """h_pred_u = PredictionRNN(h_pred_{u−1}, e_{u−1}); the empty sequence has read <sos>, which is the blank's id."""

    def __init__(self, config: RNNTConfig, units: int, sos: int) -> None:
        super().__init__()
        self.sos = sos
        self.embedding = nn.Embedding(units, config.embedding)
        self.rnn = LSTMStack(config.embedding, config.prediction_hidden, config.prediction_layers, config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.outputs = config.prediction_hidden

    def forward(self, labels: Tensor) -> Tensor:
        return self.rnn(self.dropout(self.embedding(nn.functional.pad(labels, (1, 0), value=self.sos))))  # type: ignore[no-any-return]

    def start(self, n: int) -> tuple[Tensor, State]:
        sos = torch.full((n,), self.sos, device=self.embedding.weight.device)
        return self.step(sos, self.rnn.zero_state(n))

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.rnn.step(self.embedding(labels), state)


class StatelessPrediction(nn.Module):
    """h_pred_u = ReLU(W [e_{u−1}; …; e_{u−context}]): the last labels and nothing else."""

    def __init__(self, config: RNNTConfig, units: int, sos: int) -> None:
        super().__init__()
        self.sos, self.context = sos, config.context
        self.embedding = nn.Embedding(units, config.embedding)
        self.mix = nn.Linear(config.context * config.embedding, config.prediction_hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.outputs = config.prediction_hidden

    def forward(self, labels: Tensor) -> Tensor:
        e = self.dropout(self.embedding(nn.functional.pad(labels, (self.context, 0), value=self.sos)))
        windows = e.unfold(1, self.context, 1)  # (B, U+1, embedding, context), oldest label first
        return torch.relu(self.mix(windows.transpose(2, 3).flatten(2)))

    def start(self, n: int) -> tuple[Tensor, State]:
        history = torch.full((n, self.context), self.sos, device=self.embedding.weight.device)
        return self._output(history), history

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        history = torch.cat([state[:, 1:], labels[:, None]], 1)
        return self._output(history), history

    def _output(self, history: Tensor) -> Tensor:
        return torch.relu(self.mix(self.embedding(history).flatten(1)))


def factorised_logits(z: Tensor, blank: int) -> Tensor:
    """Logits (…, V) whose softmax is σ(z_blank) for blank, and (1 − σ(z_blank)) softmax(z without blank) for labels."""
    is_blank = torch.arange(z.shape[-1], device=z.device) == blank
    return _factorised(z, is_blank)


def _factorised(z: Tensor, is_blank: Tensor) -> Tensor:
    return torch.where(is_blank, z + z.masked_fill(is_blank, -torch.inf).logsumexp(-1, keepdim=True), z)


def prediction_network(config: RNNTConfig, units: int, sos: int) -> LSTMPrediction | StatelessPrediction:
    """The prediction network of a config; `sos` is what it has read before the first label."""
    kind = LSTMPrediction if config.prediction == "lstm" else StatelessPrediction
    return kind(config, units, sos)


def projected(inputs: int, projection: int, joint: int) -> nn.Sequential:
    """LayerNorm, the projection, and the joint network's own matrix on that side."""
    return nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, projection), nn.Linear(projection, joint))
