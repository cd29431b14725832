"""The paper's attention encoder-decoder: BLSTM encoder, location-aware attention, LSTM decoder (Section 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.models.encoder import EncoderConfig, LSTMEncoder, ctc_layer
from ilme.models.energies import attention_energies, weights_and_context
from ilme.models.lstm import LSTMStack
from ilme.models.lstm_lm import LSTMLMConfig
from ilme.models.rows import group_equal_rows
from ilme.models.speech import SpeechNetwork
from ilme.runtime.cuda import kernels_run_on
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["AED", "PRESETS", "AEDConfig", "LMFusionConfig", "Memory"]

LOOKED = 0.05  # of the attention lies before the first frame that counts as looked at
AHEAD = 8.0  # nats by which frames that lie ahead by the pace first stand out
LARGEST = 2**29  # values inside the attention's tanh that a search makes at a time: 2 GiB in float32

# h_enc (B, T, E), W_k h_enc (B, T, A), padding (B, T) as 0 or −inf; and, where a search limits that, how many frames
# the attention may go back (B,)
Memory = tuple[Tensor, ...]


@dataclass(frozen=True)
class LMFusionConfig:
    """A language model inside the decoder (see `ilme.models.fused_lm`).

    Attributes:
        method: How it takes part: `deep`, `cold`, `component` or `simple`; `none` has no LM.
        lm: Its shape.
    """

    method: Literal["none", "deep", "cold", "component", "simple"] = "none"
    lm: LSTMLMConfig = field(default_factory=LSTMLMConfig)


@dataclass(frozen=True)
class AEDConfig:
    """Shape of the AED. The embedding has the encoder's output dimension: the decoder reads their sum.

    Attributes:
        encoder: The acoustic encoder.
        decoder_hidden: Units of each decoder LSTM layer.
        decoder_layers: Number of decoder LSTM layers.
        attention: Dimension of the additive attention.
        filters: Convolution filters over the previous attention weights; 0 makes it content-based.
        width: Width of those filters in frames, odd.
        pace: Frames that the attention first moves on by with each label, until it learns better; it then begins at the
            first frame. 0: it begins at all of them alike, and must learn to move.
        ctc: Add a CTC output layer on the encoder, for an auxiliary loss.
        dropout: In the decoder; the encoder has its own.
        fusion: A language model inside the decoder.
    """

    encoder: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(hidden=780, bidirectional=True, projection=780)
    )
    decoder_hidden: int = 1280
    decoder_layers: int = 2
    attention: int = 1280
    filters: int = 32
    width: int = 31
    pace: float = 0.0
    ctc: bool = False
    dropout: float = 0.1
    fusion: LMFusionConfig = field(default_factory=LMFusionConfig)

    def __post_init__(self) -> None:
        if self.filters and self.width % 2 == 0:
            raise BadInputError(f"width must be odd, so that a filter has a centre; got {self.width}")
        if self.pace and not (self.filters and 0 < self.pace <= self.width // 2):
            raise BadInputError(
                f"pace={self.pace} is how far a filter looks back: it needs filters, and must lie between 0 and half "
                f"their width ({self.width // 2} frames)"
            )


PRESETS: dict[str, AEDConfig] = {
    "paper": AEDConfig(),
    "small": AEDConfig(
        encoder=EncoderConfig(hidden=256, layers=4, bidirectional=True, projection=320, time_reduction=2),
        decoder_hidden=512,
        decoder_layers=1,
        attention=256,
        filters=16,
        width=31,
        ctc=True,
    ),
    "tiny": AEDConfig(
        encoder=EncoderConfig(hidden=32, layers=2, bidirectional=True, projection=48, dropout=0.0),
        decoder_hidden=64,
        decoder_layers=1,
        attention=32,
        filters=4,
        width=7,
        dropout=0.0,
    ),
}


class AED(SpeechNetwork):
    """P(y_u | x, y_{<u}) = softmax(W_d h_dec_u + b_d); implements `ilme.protocols.AttentionDecoder`.

    Legend: B utterances, n label sequences (n / B of each utterance, standing together), T frames, U labels,
    E encoder and embedding dimension, A attention dimension, V output units, <eos> included.
    """

    kind = "aed"

    def __init__(self, config: AEDConfig, tokens: Tokens) -> None:
        super().__init__()
        if tokens.eos is None:
            raise BadInputError("an attention decoder needs a token inventory with an eos")
        self.config, self.tokens = config, tokens
        self.sos = tokens.eos if tokens.sos is None else tokens.sos
        width = config.encoder.outputs
        self.encoder = LSTMEncoder(config.encoder)
        self.embedding = nn.Embedding(len(tokens), width)
        self.rnn = LSTMStack(width, config.decoder_hidden, config.decoder_layers, config.dropout)
        self.attend = LocationAttention(config, width)
        self.output = nn.Linear(config.decoder_hidden, len(tokens))
        self.dropout = nn.Dropout(config.dropout)
        self.ctc = ctc_layer(width, tokens) if config.ctc else None

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def encode(self, features: Tensor, lengths: Tensor) -> Memory:
        """Memory of B utterances; one without frames is heard as a single frame."""
        h, lengths = self.encoder(features, lengths)
        outside = torch.arange(h.shape[1], device=h.device) >= lengths[:, None].clamp(min=1)
        padding = torch.zeros(outside.shape, device=h.device, dtype=h.dtype).masked_fill_(outside, -torch.inf)
        return h, self.attend.key(h), padding

    def looking_back(self, memory: Memory, frames: int) -> Memory:
        """The memory for a search in which the attention goes back at most so many frames from where it last looked.

        A sentence in which a phrase stands twice can lead it back to the first, and the search then reads all that
        follows again, and again.
        """
        return (*memory[:3], torch.full((len(memory[2]),), frames, device=self.device))

    def start(self, memory: Memory) -> tuple[Tensor, State]:
        B = len(memory[2])
        sos = torch.full((B,), self.sos, device=self.device)
        return self.step(sos, (self.zero_state(B), *self.first_look(memory)), memory)

    def zero_state(self, n: int) -> State:
        """The decoder's state before it has read anything, of n sequences."""
        return self.rnn.zero_state(n)

    def first_look(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Weights a_0 (B, T) and context c_0 (B, E), from h_dec_0 = 0."""
        h = memory[1].new_zeros(len(memory[2]), self.config.decoder_hidden)
        return self.attend(self.attend.before(memory[2]), memory, h)  # type: ignore[no-any-return]

    def step(self, labels: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        rnn, weights, context = state
        h, rnn = self.decode(labels, context, rnn)
        weights, context = self.attend(weights, memory, h)
        return log_softmax(self.output(h)), (rnn, weights, context)

    def without_audio(self) -> Memory:
        """One frame of zeros: its context vector is zero, so nothing but the labels reaches the decoder."""
        h = torch.zeros(1, 1, self.config.encoder.outputs, device=self.device, dtype=self.output.weight.dtype)
        return h, self.attend.key(h), h.new_zeros(1, 1)

    def decode(self, labels: Tensor, context: Tensor | None, rnn: State) -> tuple[Tensor, State]:
        """h_dec_u = DecoderRNN(h_dec_{u−1}, e_{u−1} + c_{u−1})   (Eq. 7); without c it is Eq. 31's: (n, hidden)."""
        e = self.embedding(labels)
        if self.training:
            e, context = self.dropout(e if context is None else e + context), None
        return self.rnn.step(e, rnn, context)

    def decode_all(self, memory: Memory, labels: Tensor) -> Tensor:
        """Logits (B, U+1, V) for given labels (B, U): the same numbers as start and step, with gradients."""
        rnn = self.zero_state(len(labels))
        weights, context = self.first_look(memory)
        outputs = []
        for previous in nn.functional.pad(labels, (1, 0), value=self.sos).unbind(1):
            h, rnn = self.decode(previous, context, rnn)
            weights, context = self.attend(weights, memory, h)
            outputs.append(h)
        return self.output(self.dropout(torch.stack(outputs, 1)))  # type: ignore[no-any-return]

    def beside_lm(self, h: Tensor, labels: Tensor) -> Tensor:
        """What the output layer reads: h_dec_1 … h_dec_{U+1} (B, U+1, hidden), beside an LM's view of labels (B, U)."""
        return h

    def output_terms(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output layer as vectors (…, D), a matrix (V, D) and a bias (V,), from what it reads."""
        return x, self.output.weight, self.output.bias

    @torch.no_grad()
    def attended(self, labels: Tensor, memory: Memory, seconds: float) -> tuple[Tensor, float]:
        """Attention (U+1, T) from which labels (U,) and the end were read: y_u is read from c_{u−1}."""
        memory = memory[:3]
        _, state = self.start(memory)
        rows = [self.first_look(memory)[0][0], state[1][0]]
        for previous in labels[:-1]:
            _, state = self.step(previous[None], state, memory)
            rows.append(state[1][0])
        frames = int((memory[2][0] == 0).sum())
        return torch.stack(rows)[: len(labels) + 1, :frames], seconds / frames

    @property
    def has_ctc(self) -> bool:
        return self.ctc is not None

    def ctc_scores(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """log P (B, T, V) of CTC's layer at each frame, blank in the place of <eos>, and frames (B,)."""
        if self.ctc is None:
            raise BadInputError("this AED has no CTC layer: train one with model.ctc=true and a weight aed.ctc")
        return log_softmax(self.ctc(memory[0])), (memory[2] == 0).sum(1)

    def language_parameters(self) -> dict[str, nn.Parameter]:
        """The weights that the internal LM uses, too: all but those that only audio passes through."""
        return {n: p for n, p in self.named_parameters() if not n.startswith(("encoder.", "attend.", "ctc."))}

    def components(self) -> dict[str, nn.Module]:
        parts = {"encoder": self.encoder, "attention": self.attend}
        parts["decoder"] = nn.ModuleList([self.embedding, self.rnn, self.output])
        return parts if self.ctc is None else {**parts, "ctc": self.ctc}


class LocationAttention(nn.Module):
    """Additive attention that knows where it looked last (Eqs. 5, 6).

    a_u = softmax_t vᵀ tanh(W_q h_dec_u + W_k h_enc_t + W_f (F ∗ a_{u−1})_t),   c_u = Σ_t a_{u,t} h_enc_t
    """

    def __init__(self, config: AEDConfig, width: int) -> None:
        super().__init__()
        A, filters = config.attention, config.filters
        self.query = nn.Linear(config.decoder_hidden, A, bias=False)
        self.key = nn.Linear(width, A)
        self.energy = nn.Linear(A, 1, bias=False)
        self.filters = nn.Conv1d(1, filters, config.width, padding=config.width // 2, bias=False) if filters else None
        self.location = nn.Linear(filters, A, bias=False) if filters else None
        self.moves = config.pace > 0
        if self.moves:
            self._start_moving(config.pace)

    @torch.no_grad()
    def _start_moving(self, pace: float) -> None:
        """First weights with which the attention moves on by `pace` frames with each label, whatever is said.

            (F_0 ∗ a)_t = Σ_d exp(−½ ((d − pace) / 0.6 pace)²) a_{t−d},    W_f0 = β sgn(v):    vᵀ tanh(W_f0) ≈ AHEAD

        From a random start it is uniform, and filters of random weights pass on next to nothing of that: nothing says
        what comes next.
        """
        assert self.filters is not None and self.location is not None
        v, width = self.energy.weight[0], self.filters.weight.shape[2]
        back = width // 2 - torch.arange(width, dtype=v.dtype, device=v.device)
        self.filters.weight[0, 0] = torch.exp(-0.5 * ((back - pace) / (0.6 * pace)).square()) * (back >= 0)
        self.location.weight[:, 0] = v.sign() * math.atanh(min(0.95, AHEAD / float(v.abs().sum())))

    def before(self, padding: Tensor) -> Tensor:
        """Weights (B, T) that stand for those of a label before the first; padding as in `Memory`."""
        if not self.moves:
            return padding.softmax(-1)
        first = torch.zeros_like(padding)
        first[:, 0] = 1.0
        return first

    def forward(self, previous: Tensor, memory: Memory, h: Tensor) -> tuple[Tensor, Tensor]:
        """Previous weights (n, T), memory of B utterances, h_dec (n, hidden): weights (n, T), context (n, E)."""
        values, keys, padding, *back = memory
        query = self.query(h[:, : self.query.in_features])  # an LM's view of the labels may stand beside h_dec
        if not torch.is_grad_enabled() and keys.device.type == "cpu":
            energy = self._energies_in_blocks(keys, query, previous)
        else:
            energy = self._energies(keys, query, previous)
        if back:
            passed = _passed(previous.view(len(keys), -1, keys.shape[1]), back[0])
            energy = energy.masked_fill(passed.view_as(energy), -torch.inf)
        return weights_and_context(energy, padding, values)

    def _energies(self, keys: Tensor, query: Tensor, previous: Tensor) -> Tensor:
        """keys (B, T, A), query (n, A), previous (n, T): energies (n, T).

        Beams of many utterances would fill a GPU: a search stores no z where a kernel makes the energies, and elsewhere
        no more than LARGEST values at a time.
        """
        (B, T, A), K = keys.shape, len(query) // len(keys)
        searches = not torch.is_grad_enabled()
        F, W_f = (None if layer is None else layer.weight for layer in (self.filters, self.location))
        v = self.energy.weight[0]
        fused = searches and F is not None and kernels_run_on(keys.device)
        at_once = max(1, LARGEST // (K * T * A)) if searches and not fused else B
        parts = []
        for b in range(0, B, at_once):
            rows = slice(b * K, (b + at_once) * K)
            part = keys[b : b + at_once], query[rows], previous[rows]
            parts.append(attention_energies(*part, F, W_f, v, fused=fused))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _energies_in_blocks(self, keys: Tensor, query: Tensor, previous: Tensor) -> Tensor:
        """The same numbers, one sequence at a time: (T, A) stays in the processor's cache, (B, K, T, A) would not.

        vᵀ tanh(z) = 2 vᵀ σ(2z) − Σ v: torch's vectorised sigmoid is several times faster than its tanh. Sequences with
        one parent looked at the same frames last, previous (n, T): what does not depend on the query is computed once.
        """
        (B, T, A), K = keys.shape, len(query) // len(keys)
        v = self.energy.weight[0]
        unasked, z, out = keys.new_empty(T, A), keys.new_empty(T, A), keys.new_empty(B * K, T)
        queries = 2 * query
        for b in range(B):
            looked, siblings = group_equal_rows(previous[b * K : (b + 1) * K])
            moved = None if self.filters is None else self.filters(looked[:, None]).transpose(1, 2)
            for parent, children in enumerate(siblings):
                # 2 (W_k h_enc + W_f (F ∗ a))
                if moved is None or self.location is None:
                    torch.mul(keys[b], 2, out=unasked)
                else:
                    torch.addmm(keys[b], moved[parent], self.location.weight.t(), beta=2, alpha=2, out=unasked)
                for k in (b * K + child for child in children):
                    torch.add(unasked, queries[k], out=z)
                    torch.mv(z.sigmoid_(), v, out=out[k])
        return out.mul_(2).sub_(v.sum())


def _passed(previous: Tensor, back: Tensor) -> Tensor:
    """Which frames (B, K, T) lie too far before the last look (B, K, T): by more than back (B,) frames."""
    first = (previous.cumsum(-1) < LOOKED).sum(-1, keepdim=True)
    return torch.arange(previous.shape[2], device=previous.device) < first - back[:, None, None]
