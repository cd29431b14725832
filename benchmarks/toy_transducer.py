"""A transducer that needs no training, and made-up speech for it: the search is real, the sounds are not.

    P(k | t, y) = softmax(f_t + g_u)_k,   g_u = log P_source(· | y_u) + log V,   g_u[blank] = 0

so the joint is additive, the internal LM is P_source by construction, and the acoustic term f_t is a drawn vector:
noise, with the spoken label and blank raised. No word follows itself, so that once a label is out its frame ends with
blank. Speech and text of the target domain come from another
bigram, P_target; the external LM is a bigram counted on a limited text of that domain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ilme.data.audio import Samples
from ilme.data.utterances import Utterance
from ilme.ilm.transducer import TransducerInternalLM
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.state import State
from ilme.search.transducer import TransducerOptions
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens

UNITS = 60  # id 0 is blank, 1 <unk>, the rest are words
RATE = 16000
LM_SENTENCES = 2000  # text that the external LM is counted on
SPOKEN, SILENT, BETWEEN = 10.0, 3.0, 6.5  # how far a label, blank in its frame, and blank after it stand out
NOISE = 2.2  # deviation of everything


class Bigram:
    """log P(· | last label) out of a table (V, V); row 0 is the start of a sentence. A `TokenScorer`."""

    def __init__(self, tokens: Tokens, table: Tensor) -> None:
        self.tokens, self.table, self.device = tokens, table, torch.device("cpu")

    def start(self, n: int) -> tuple[Tensor, State]:
        last = torch.zeros(n, dtype=torch.long)
        return self.table[last], last

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.table[labels], labels

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows))


class ToyTransducer:
    """The transducer of the formula above; its features are f itself."""

    def __init__(self, tokens: Tokens, source: Tensor) -> None:
        self.tokens, self.device = tokens, torch.device("cpu")
        self.language = source + math.log(len(tokens))
        self.language[:, 0] = 0.0

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return features, lengths

    def start(self, n: int) -> tuple[Tensor, State]:
        last = torch.zeros(n, dtype=torch.long)
        return self.language[last], last

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.language[labels], labels

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        return g if f is None else f + g


class Words:
    """Ids as the words they are named by."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def encode(self, text: str) -> list[int]:
        return [self.tokens.pieces.index(f"▁{word}") for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.tokens.pieces[i].lstrip("▁") for i in ids)


def features(audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
    """The acoustic terms (B, T, V), which the toy's recordings hold as they are."""
    rows = [torch.from_numpy(a).reshape(-1, UNITS) for a in audio]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])


def make_toy(seed: int, utterances: int) -> tuple[Recogniser, list[Utterance]]:
    """A recogniser of the source domain with an LM of the target domain, and a dev set of the target domain."""
    generator = np.random.default_rng(seed)
    tokens = numbered_tokens(UNITS, "transducer")
    source, target = (_domain(generator) for _ in range(2))
    counts = np.full((UNITS, UNITS), 0.1)
    for _ in range(LM_SENTENCES):
        for before, after in _pairs(_sentence(generator, target)):
            counts[before, after] += 1
    model = ToyTransducer(tokens, _log(source))
    recogniser = Recogniser(
        model,
        features,
        Words(tokens),
        lm=Bigram(tokens, _log(counts)),
        subtracted=TransducerInternalLM(model),
        options=TransducerOptions(max_symbols=2),
        rate=RATE,
    )
    spoken = [_sentence(generator, target) for _ in range(utterances)]
    return recogniser, [_utterance(generator, k, labels) for k, labels in enumerate(spoken)]


def _domain(generator: np.random.Generator) -> NDArray[np.float64]:
    """A bigram whose words have a few likely followers each: rows (V, V), blank and <unk> impossible."""
    table = 0.7 * generator.dirichlet(np.full(UNITS, 0.08), size=UNITS) + 0.3 / UNITS
    table[:, :2] = 0.0
    np.fill_diagonal(table, 0.0)
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def _log(table: NDArray[np.float64]) -> Tensor:
    rows = table.copy()
    rows[:, :2] = 0.0
    np.fill_diagonal(rows, 0.0)
    return torch.from_numpy(np.log(np.maximum(rows / rows.sum(axis=1, keepdims=True), 1e-9))).float()


def _sentence(generator: np.random.Generator, table: NDArray[np.float64]) -> list[int]:
    labels = [0]
    for _ in range(int(generator.integers(5, 14))):
        labels.append(int(generator.choice(UNITS, p=table[labels[-1]])))
    return labels[1:]


def _pairs(labels: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *labels], labels, strict=False))


def _utterance(generator: np.random.Generator, number: int, labels: list[int]) -> Utterance:
    """One frame for each label and one blank frame after it, all of them noisy."""
    frames = generator.normal(0.0, NOISE, size=(2 * len(labels), UNITS))
    frames[0::2, :][np.arange(len(labels)), labels] += SPOKEN
    frames[0::2, 0] += SILENT
    frames[1::2, 0] += BETWEEN
    samples = frames.astype(np.float32).reshape(-1)
    text = " ".join(str(i) for i in labels)
    return Utterance(f"u{number:04d}", text, samples, f"s{number % 20}", len(samples) / RATE)
