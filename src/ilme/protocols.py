"""What a search needs of a model and of a language model. Implement one of these and everything else works.

Shapes: n label sequences, B utterances, T frames, V output units, D features, J the joint's dimension. A state is a
nest of tensors with the sequence first (see `ilme.runtime.state`); all scores are natural logarithms. A network whose
steps wait for nothing on the host may say `capturable = True`: a CUDA search then replays them as a graph.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["AttentionDecoder", "InternalLM", "LimitedAttention", "NullScorer", "TokenScorer", "Transducer"]


class TokenScorer(Protocol):
    """A language model over token ids: external, source-domain or internal."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def device(self) -> torch.device: ...

    def start(self, n: int) -> tuple[Tensor, State]:
        """log P(· | empty) for n empty sequences, (n, V), and their states."""
        ...

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Extends each sequence by its label (n,): log P(· | sequence) (n, V), and the new states."""
        ...

    def finish(self, rows: Tensor) -> Tensor:
        """log P(end | sequence) (n,) out of rows (n, V); 0 for a scorer that does not score the end."""
        ...


class Transducer(Protocol):
    """f_t = W_e h_enc + b_e, g_u = W_p h_pred + b_p, z_{t,u} = J(f_t + g_u)   (Eqs. 21–23)."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def device(self) -> torch.device: ...

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, T, D) and their lengths (B,) to the acoustic terms f (B, T', J) and lengths (B,)."""
        ...

    def start(self, n: int) -> tuple[Tensor, State]:
        """The language terms g (n, J) of n empty sequences, and their states."""
        ...

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Extends each sequence by its label (n,): g (n, J), and the new states."""
        ...

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        """Logits J(f + g) (n, V), blank included; with f = None the acoustic term is absent: J(g)."""
        ...


class AttentionDecoder(Protocol):
    """An encoder and a decoder that attends to it, label by label (Eqs. 5–9)."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def device(self) -> torch.device: ...

    def encode(self, features: Tensor, lengths: Tensor) -> State:
        """Features (B, T, D) and their lengths (B,) to the memory the decoder attends to, utterance first."""
        ...

    def start(self, memory: State) -> tuple[Tensor, State]:
        """log P(· | x, empty) (B, V) for one empty sequence per utterance, and the states."""
        ...

    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        """Extends each sequence by its label (n,): log P(· | x, sequence) (n, V), and the new states.

        n is a multiple of B; the n / B sequences of one utterance stand together.
        """
        ...


@runtime_checkable
class LimitedAttention(Protocol):
    """An attention decoder whose attention can be kept from going back."""

    def looking_back(self, memory: State, frames: int) -> State:
        """The memory with which it goes back at most so many frames of the encoder from where it last looked."""
        ...


@runtime_checkable
class InternalLM(Protocol):
    """A TokenScorer that is a model's own internal LM, and so can share work with the model's own step.

    A search whose model is `host` calls `ride` in place of `score`. The results are the same; the work is not done
    twice. For a transducer the ride is `ride(g)`; for an attention decoder it is
    `ride(labels, state, internal_state, memory)`, which does both steps at once.
    """

    @property
    def host(self) -> Transducer | AttentionDecoder: ...


class NullScorer:
    """Scores every label 0. Its rows are (n, 1): one number that stands for every label."""

    capturable = True

    def __init__(self, tokens: Tokens, device: torch.device | str = "cpu") -> None:
        self.tokens = tokens
        self.device = torch.device(device)

    def start(self, n: int) -> tuple[Tensor, State]:
        return torch.zeros(n, 1, device=self.device), None

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.start(len(labels))

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows))
