"""What a search needs of a model and of a language model. Implement one of these and everything else works.

    Transducer        encode, start, predict, join; a TDT also durations, join_durations
    CTCModel          encode, emit
    AttentionDecoder  encode, start, step, without_audio
    TokenScorer       start, score, finish

Four methods make a model: it then has an internal LM (`ilme.internal_lm`), a search and a tuner. A `SpeechModel` also
says how audio becomes features and how labels become text. What further protocols declare is optional: a model that has
it runs faster, or has one more option.

Shapes: n label sequences, B utterances, T frames, V output units, D features, J the joint's dimension. A state is a
nest of tensors with the sequence first (see `ilme.runtime.state`); all scores are natural logarithms. A network whose
steps wait for nothing on the host may say `capturable = True`: a CUDA search then replays them as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ilme.runtime.state import State
from ilme.tokens import Tokenizer, Tokens

__all__ = [
    "AttendsFrames",
    "AttentionDecoder",
    "CTCBeside",
    "CTCModel",
    "CompactMemory",
    "DurationTransducer",
    "InternalLM",
    "LimitedAttention",
    "NullScorer",
    "PartialJoint",
    "Samples",
    "SharedPrediction",
    "SharedStep",
    "SpeechModel",
    "StreamingEncoder",
    "TokenScorer",
    "Transducer",
]

Samples = np.ndarray[Any, np.dtype[np.float32]]  # a waveform (N,), mono, −1 to 1


class TokenScorer(Protocol):
    """A language model over token ids: external, source-domain or internal.

    Rows are (n, V); a scorer whose score is the same for every label may return (n, 1).
    """

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


class DurationTransducer(Transducer, Protocol):
    """A TDT: beside a label, the joint network says how many frames to go on by (Xu et al. 2023).

    P(v, d | t, u) = softmax(z)_v · softmax(z')_d: a label may take any of the durations, blank all but 0.

    Attributes:
        durations: Frames that each of the D duration logits stands for.
    """

    @property
    def durations(self) -> tuple[int, ...]: ...

    def join_durations(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, V) of the labels, as `join` gives them, and (n, D) of the durations."""
        ...


class CTCModel(Protocol):
    """An encoder and one output layer: z_t = W h_t + b, each frame on its own."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def device(self) -> torch.device: ...

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, T, D) and their lengths (B,) to the encoder's outputs h (B, T', E) and lengths (B,)."""
        ...

    def emit(self, h: Tensor | None) -> Tensor:
        """Logits (…, V) of h (…, E), blank included; with h = None the acoustic term is absent: b alone (V,)."""
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

    def without_audio(self) -> State:
        """The memory of one utterance (B = 1) that holds no audio: what its internal LM attends to."""
        ...


class SpeechModel(Protocol):
    """What a recogniser needs beside the four methods of a `Transducer` or an `AttentionDecoder`.

    Attributes:
        tokenizer: Text to ids and back.
        rate: Samples a second that `features` wants.
        window: Seconds of audio that the model takes at once.
    """

    @property
    def tokens(self) -> Tokens: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def rate(self) -> int: ...

    @property
    def window(self) -> float: ...

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Waveforms to what `encode` takes: features (B, T, D) and their lengths (B,)."""
        ...


# --- optional: what makes a model faster, or gives it one more option ---------------------------------------------


@runtime_checkable
class CompactMemory(Protocol):
    """An attention decoder whose memory is made of something smaller, which is what is kept between two searches."""

    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states (B, T, D), and a mask (B, T): True where a frame counts, or the logarithm of how much it does.

        None if all count alike.
        """
        ...

    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """What the decoder attends to, utterance first: `encode` is `memory` of `hidden`."""
        ...


@runtime_checkable
class LimitedAttention(Protocol):
    """An attention decoder whose attention can be kept from going back."""

    def looking_back(self, memory: State, frames: int) -> State:
        """The memory with which it goes back at most so many frames of the encoder from where it last looked."""
        ...


@runtime_checkable
class CTCBeside(Protocol):
    """An attention decoder whose encoder may have a CTC layer too, which a search can ask as well.

    Attributes:
        has_ctc: Whether this one's has.
    """

    @property
    def has_ctc(self) -> bool: ...

    def ctc_scores(self, memory: State) -> tuple[Tensor, Tensor]:
        """log P (B, T, V) of each frame, the blank in the end's place, and frames of each utterance (B,)."""
        ...


@runtime_checkable
class AttendsFrames(Protocol):
    """An attention decoder that can say where it looked, from which words get their times."""

    @property
    def device(self) -> torch.device: ...

    def attended(self, labels: Tensor, memory: State, seconds: float) -> tuple[Tensor, float]:
        """How much each of the labels (U,), and the end, looks at each frame: (U + 1, T); and the seconds of a frame.

        The memory is of one utterance that lasts `seconds`; T are the frames that hold audio.
        """
        ...


@runtime_checkable
class StreamingEncoder(Protocol):
    """A transducer whose audio can be searched as it comes.

    Attributes:
        streams: Whether this one's can; networks of one class may read in one direction or in both.
        frontend: How audio becomes features (`ilme.data.features.FrontendConfig`).
    """

    @property
    def streams(self) -> bool: ...

    @property
    def frontend(self) -> Any: ...

    def encode_on(self, features: Tensor, state: State, last: bool) -> tuple[Tensor, State]:
        """Acoustic terms (1, T', J) of the next features (1, T, D) after `state`, which is None at the beginning."""
        ...


@runtime_checkable
class PartialJoint(Protocol):
    """A transducer that can compute the logits of a few output units without the others."""

    def join_some(self, f: Tensor, g: Tensor, units: Tensor) -> Tensor:
        """Logits (n, m) of the units (m,), for f and g (n, J)."""
        ...


@runtime_checkable
class InternalLM(TokenScorer, Protocol):
    """A `TokenScorer` that was made from a model: what the model has learned of language, without its acoustics.

    Attributes:
        host: The model.
        how: How it was estimated, such as `removed` or `silence`.
        tensors: What takes the place of the acoustics; with `how` and `scale` all that is needed to make it again.
        scale: A factor of the logits; 1 in the paper.
    """

    @property
    def host(self) -> Any: ...

    @property
    def how(self) -> str: ...

    @property
    def tensors(self) -> dict[str, Tensor]: ...

    @property
    def scale(self) -> float: ...


@runtime_checkable
class SharedPrediction(Protocol):
    """The internal LM of a transducer, which needs nothing but the language terms that the search has already."""

    @property
    def host(self) -> Any: ...

    def rows_of(self, g: Tensor) -> Tensor:
        """log P(· | sequence) (n, V) from the host's language terms g (n, J)."""
        ...


@runtime_checkable
class SharedStep(Protocol):
    """The internal LM of an attention decoder that takes its step together with the host's: each weight is read once.

    The results are those of `host.step` and of its own `score`.
    """

    @property
    def host(self) -> Any: ...

    def step_both(
        self, labels: Tensor, state: State, internal: State, memory: State
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """(rows, state) of the host and (rows, state) of this scorer, one label (n,) later."""
        ...


# --- no language model ------------------------------------------------------------------------------------------------


class NullScorer:
    """Scores every label 0, so that no search asks whether there is a language model."""

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
