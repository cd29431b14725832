"""A model that has the documented members and nothing else gets an internal LM, a search, a tuner and a recogniser."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ilme
from ilme.data.utterances import Utterance
from ilme.fusion import Fusion, FusionWeights
from ilme.protocols import NullScorer
from ilme.search.rescoring import sequence_scores
from ilme.testing import check_transducer
from ilme.testing.contract import check_attention_model, check_ctc, check_internal_lm
from ilme.tokens import Tokens
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.evaluate import Plan

WORDS = ("red", "green", "blue", "white")
RATE = 8000
STEP = RATE // 10  # samples of a spoken word: a tone of its own height


class Words:
    """Text is a sequence of colours."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @property
    def tokens(self):
        return self._tokens

    def encode(self, text):
        return [1 + WORDS.index(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(WORDS[i - 1] for i in ids)


def features(audio):
    """A tone's height, as one vector for each tenth of a second: (B, T, 1)."""
    frames = [max(len(a) // STEP, 1) for a in audio]
    out = torch.zeros(len(audio), max(frames), 1)
    for row, a in zip(out, audio, strict=True):
        for t in range(max(len(a) // STEP, 1)):
            row[t] = float(np.mean(a[t * STEP : (t + 1) * STEP])) if len(a) else 0.0
    return out, torch.tensor(frames)


def spoken(text):
    return np.concatenate([np.full(STEP, 0.1 * (1 + WORDS.index(word)), np.float32) for word in text.split()])


def heard(x):
    """Log-probabilities of the four words for heights (…, 1)."""
    heights = 0.1 * torch.arange(1, 5)
    return (-((x - heights) ** 2) * 400).log_softmax(-1)


class OwnTransducer:
    """Says one word for each frame, and has learned that `red` is frequent."""

    tokens = Tokens(("<b>", *WORDS), blank=0)
    device = torch.device("cpu")

    def encode(self, features, lengths):
        said = torch.nn.functional.pad(heard(features), (1, 0), value=-3.0)
        return said, lengths

    def start(self, n):
        return torch.tensor([0.0, 0.6, 0.0, 0.0, 0.0]).expand(n, -1).clone(), torch.zeros(n, 1)

    def predict(self, labels, state):
        g, _ = self.start(len(labels))
        g[torch.arange(len(labels)), labels] -= 4.0  # hardly ever the same word twice
        return g, labels[:, None].float()

    def join(self, f, g):
        return g.clone() if f is None else f + g


class OwnTDT(OwnTransducer):
    """The same, and each word lasts one frame."""

    durations = (0, 1, 2)

    def join_durations(self, f, g):
        return self.join(f, g), torch.tensor([-4.0, 4.0, -4.0]).expand(len(g), -1)


class OwnCTC:
    """Says one word for each frame, and has learned that `red` is frequent."""

    tokens = Tokens(("<b>", *WORDS), blank=0)
    device = torch.device("cpu")

    def encode(self, features, lengths):
        return heard(features), lengths

    def emit(self, h):
        bias = torch.tensor([-3.0, 0.6, 0.0, 0.0, 0.0])
        return bias if h is None else torch.nn.functional.pad(h, (1, 0)) + bias


class OwnDecoder:
    """Says the words of its memory one after the other, then ends."""

    tokens = Tokens(("<eos>", *WORDS), sos=0, eos=0)
    device = torch.device("cpu")

    def encode(self, features, lengths):
        return {"said": heard(features), "frames": lengths}

    def start(self, memory):
        state = torch.zeros(len(memory["frames"]), 1, dtype=torch.long)
        return self._rows(state, memory), state

    def step(self, labels, state, memory):
        return self._rows(state + 1, memory), state + 1

    def without_audio(self):
        return {"said": torch.tensor([0.4, 0.2, 0.2, 0.2]).log()[None, None], "frames": torch.tensor([1])}

    def _rows(self, place, memory):
        each = len(place) // len(memory["frames"])
        said = memory["said"].repeat_interleave(each, 0)
        frames = memory["frames"].repeat_interleave(each)
        at = torch.minimum(place[:, 0], frames - 1)
        words = said[torch.arange(len(at)), at]
        end = torch.where(place[:, 0] >= frames, 4.0, -4.0)[:, None]
        return torch.cat([end, words], 1).log_softmax(-1)


def only_documented(model) -> set[str]:
    return {name for name in dir(model) if not name.startswith("_")}


TEXTS = ["red green blue", "blue white", "green red white blue", "white green"]
UTTERANCES = [
    Utterance(str(i), text, spoken(text), seconds=len(text.split()) / 10, rate=RATE) for i, text in enumerate(TEXTS)
]


KINDS = {"transducer": OwnTransducer, "tdt": OwnTDT, "ctc": OwnCTC, "decoder": OwnDecoder}
SEARCHES = {
    "transducer": lambda *parts: ilme.TransducerSearch(*parts, ilme.TransducerOptions(beam=4, max_symbols=1)),
    "tdt": lambda *parts: ilme.TDTSearch(*parts, ilme.TransducerOptions(beam=4, max_symbols=1)),
    "ctc": lambda *parts: ilme.CTCSearch(*parts, ilme.CTCOptions(beam=4)),
    "decoder": lambda *parts: ilme.AttentionSearch(*parts, ilme.AttentionOptions(beam=4, max_length=8)),
}
ESTIMATES = {
    "transducer": ("removed", "mean-encoder"),
    "tdt": ("removed", "mean-encoder"),
    "ctc": ("removed", "frame-prior", "distilled"),
    "decoder": ("zeroed",),
}


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return KINDS[kind]()


def test_they_have_the_documented_members_alone():
    both = {"tokens", "device", "encode"}
    assert only_documented(OwnTransducer()) == both | {"start", "predict", "join"}
    assert only_documented(OwnTDT()) == both | {"start", "predict", "join", "durations", "join_durations"}
    assert only_documented(OwnCTC()) == both | {"emit"}
    assert only_documented(OwnDecoder()) == both | {"start", "step", "without_audio"}


def test_they_keep_the_contract():
    x, lengths = features([spoken(t) for t in TEXTS[:2]])
    check_transducer(OwnTransducer(), x, lengths, [1, 2])
    check_transducer(OwnTDT(), x, lengths, [1, 2])
    check_ctc(OwnCTC(), x, lengths)
    decoder = OwnDecoder()
    check_attention_model(decoder, x, lengths, [1, 2])
    check_internal_lm(ilme.internal_lm(decoder), decoder, x, lengths, [1, 2])


def test_it_has_an_internal_lm(kind, model):
    assert ilme.internal_lm.available(model) == ESTIMATES[kind]
    rows, _ = ilme.internal_lm(model).start(1)
    labels = rows[0, 1:].exp()
    assert labels.argmax() == 0, "it has learned that red is frequent"
    if kind != "decoder":
        torch.testing.assert_close(labels, torch.tensor([0.6, 0.0, 0.0, 0.0]).softmax(0))


def test_it_has_a_search(kind, model):
    encoded = model.encode(*features([spoken(TEXTS[0])]))
    internal = ilme.internal_lm(model)
    fusion = Fusion(NullScorer(model.tokens), internal, FusionWeights(lm=0.1, subtracted=0.3))
    search = SEARCHES[kind](model, fusion)
    best = (search(encoded) if kind == "decoder" else search(*encoded))[0][0]
    assert Words(model.tokens).decode(best.tokens) == TEXTS[0]
    alone = sequence_scores(internal, [best.tokens], finish=kind == "decoder").item()
    assert best.scores.subtracted == pytest.approx(alone, abs=1e-5)


def test_it_has_a_recogniser_and_a_tuner(model, tmp_path):
    recogniser = ilme.Recogniser(
        model,
        features,
        Words(model.tokens),
        lm=NullScorer(model.tokens),
        subtracted=ilme.internal_lm(model),
        rate=RATE,
    )
    assert recogniser.transcribe(spoken("white red"), rate=RATE).text == "white red"
    result = ilme.tune(recogniser, UTTERANCES, options=TuningOptions(max_decodes=2, beam=4, replicates=0))
    assert result.dev.errors == 0
    results = ilme.evaluate(recogniser, UTTERANCES, weights=result.weights, plan=Plan("own", "ILME", beam=4))
    assert results.measurements["own ILME"].rate == 0.0
