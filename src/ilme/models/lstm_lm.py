"""The paper's LSTM language model: tied embeddings, the top layer projected to the embedding's dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.models.lstm import LSTMStack
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["LSTMLM", "PRESETS", "LSTMLMConfig"]


@dataclass(frozen=True)
class LSTMLMConfig:
    """Shape of the LSTM-LM.

    Attributes:
        embedding: Dimension of a token's embedding, input and output (they are one matrix).
        hidden: Units of each LSTM layer.
        layers: Number of LSTM layers.
        dropout: Around the LSTM layers.
    """

    embedding: int = 512
    hidden: int = 2048
    layers: int = 2
    dropout: float = 0.1


PRESETS: dict[str, LSTMLMConfig] = {
    "paper": LSTMLMConfig(),
    "small": LSTMLMConfig(embedding=256, hidden=512, layers=2),
    "tiny": LSTMLMConfig(embedding=32, hidden=64, layers=1, dropout=0.0),
}


class LSTMLM(nn.Module):
    """log P(y_u | y_{<u}) over pieces and <eos>; implements `ilme.protocols.TokenScorer`."""

    kind = "lm"
    capturable = True  # its steps can be recorded in a CUDA graph

    def __init__(self, config: LSTMLMConfig, tokens: Tokens) -> None:
        super().__init__()
        if tokens.eos is None:
            raise BadInputError("a language model needs a token inventory with an eos")
        self.config, self.tokens = config, tokens
        self.sos = tokens.eos if tokens.sos is None else tokens.sos
        self.embedding = nn.Embedding(len(tokens), config.embedding)
        self.rnn = LSTMStack(config.embedding, config.hidden, config.layers, config.dropout)
        self.project = nn.Linear(config.hidden, config.embedding)
        self.output = nn.Linear(config.embedding, len(tokens))
        self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.embedding.weight, std=config.embedding**-0.5)
        nn.init.zeros_(self.output.bias)

    @property
    def device(self) -> torch.device:
        return self.output.bias.device

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens read (B, U) to the vectors (B, U, embedding) whose products with the embeddings are the logits."""
        return self.project(self.dropout(self.rnn(self.dropout(self.embedding(inputs)))))  # type: ignore[no-any-return]

    def start(self, n: int) -> tuple[Tensor, State]:
        sos = torch.full((n,), self.sos, device=self.device)
        return self.score(sos, self.rnn.zero_state(n))

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        p, state = self.advance(labels, state)
        return log_softmax(self.output(p)), state

    def advance(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """One label read (n,): the vector (n, embedding) whose products with the embeddings are the logits."""
        h, state = self.rnn.step(self.embedding(labels), state)
        return self.project(h), state

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, self.tokens.eos]

    def components(self) -> dict[str, nn.Module]:
        return {"embedding": self.embedding, "lstm": self.rnn, "projection": self.project}
