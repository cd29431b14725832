"""Shares of labels against the search's own scores, and a transducer's lattice summed in plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from ilme.evaluation.contributions import explain, forced, label_shares
from ilme.fusion import FusionWeights
from ilme.recogniser.recogniser import Encoded, Recogniser
from tests.recogniser.job import WEIGHTS, make_recogniser, make_utterances


def lattice(recogniser: Recogniser, encoded: Encoded, ids: list[int]) -> float:
    """log P(y|x): α(t, u) in two plain loops."""
    f, lengths = encoded.memory
    model, frames = recogniser.model, f[0, : int(lengths[0])]
    rows = []
    g, state = model.start(1)
    for label in [*ids, None]:
        rows.append([model.join(f[None], g).double().log_softmax(1)[0] for f in frames])
        if label is not None:
            g, state = model.predict(torch.tensor([label]), state)
    T, U = len(frames), len(ids)
    alpha = [[-math.inf] * (U + 1) for _ in range(T)]
    for t in range(T):
        for u in range(U + 1):
            ways = [0.0] if t == u == 0 else []
            if t:
                ways.append(alpha[t - 1][u] + float(rows[u][t - 1][0]))
            if u:
                ways.append(alpha[t][u - 1] + float(rows[u - 1][t][ids[u - 1]]))
            alpha[t][u] = float(torch.tensor(ways).logsumexp(0))
    return alpha[-1][-1] + float(rows[U][-1][0])


@torch.no_grad()
@pytest.mark.parametrize("ids", [[], [5], [3, 5, 5, 7]])
def test_a_transducers_shares_add_up_to_the_sum_over_all_alignments(ids: list[int]) -> None:
    recogniser = make_recogniser()
    encoded = recogniser.encode([make_utterances(1)[0].samples(16000)])
    shares = label_shares(recogniser, encoded, ids)
    assert len(shares) == len(ids) + 1 and shares[-1].piece == ""
    assert sum(s.asr for s in shares) == pytest.approx(lattice(recogniser, encoded, ids), abs=1e-4)
    assert all(s.asr <= 1e-6 for s in shares)


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_shares_add_up_to_the_searchs_scores(kind: str) -> None:
    recogniser = make_recogniser(kind)
    for utterance in make_utterances(3):
        encoded = recogniser.encode([utterance.samples(16000)])
        for h in recogniser.search(encoded, WEIGHTS, 8)[0]:
            again = forced(recogniser, encoded, h.tokens)
            assert again.scores.lm == pytest.approx(h.scores.lm, abs=1e-3)
            assert again.scores.subtracted == pytest.approx(h.scores.subtracted, abs=1e-3)
            assert again.scores.length == h.scores.length and again.text == h.text
            if kind == "aed":
                assert again.scores.asr == pytest.approx(h.scores.asr, abs=1e-3)
            else:  # the search may have dropped some alignments, never added any
                assert again.scores.asr >= h.scores.asr - 1e-3


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_explain_names_who_would_have_chosen_what(kind: str) -> None:
    recogniser = make_recogniser(kind)
    encoded = recogniser.encode([make_utterances(1)[0].samples(16000)])
    weights = FusionWeights(lm=1.0, subtracted=0.8)
    nbest = recogniser.search(encoded, weights, 8)[0]
    story = explain(recogniser, encoded, nbest, weights, "3 7")
    names = [n for choice in story["choices"] for n in choice["labels"]]
    assert sorted(names) == ["chosen", "reference", "without LM", "without subtraction"]
    assert story["choices"][0]["labels"][0] == "chosen" and story["choices"][0]["text"] == nbest[0].text
    reference = next(c for c in story["choices"] if "reference" in c["labels"])
    assert reference["text"] == "3 7"
    assert [s["piece"] for s in reference["shares"]] == ["▁3", "▁7", ""]
    fused = sum(s["asr"] + s["lm"] - 0.8 * s["subtracted"] for s in reference["shares"])
    assert reference["score"] == pytest.approx(fused, abs=1e-2)


class Spoken:
    """Words that are ids, for models that have no tokenizer."""

    def __init__(self, tokens) -> None:
        self.tokens = tokens

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ctc", "tdt"])
def test_shares_of_ctc_and_tdt_add_up_to_sums_over_alignments(kind: str) -> None:
    from tests import oracle
    from tests.search.test_ctc import Frames, heard
    from tests.search.test_tdt import Durations
    from tests.search.test_transducer import acoustics

    model = Frames(2, 4) if kind == "ctc" else Durations(2, 4, (0, 1, 2))
    frames = heard(2, 4) if kind == "ctc" else acoustics(2, 3)
    recogniser = Recogniser(model, features=lambda audio: None, tokenizer=Spoken(model.tokens))
    encoded = Encoded((frames, torch.tensor([frames.shape[1]])), torch.tensor([0.1]))
    sums = {y: asr for _, y, asr in oracle.ctc_best(model, frames[0])} if kind == "ctc" else {}
    for ids in ([], [2], [3, 3], [1, 2, 1]):
        shares = label_shares(recogniser, encoded, ids)
        expected = sums[tuple(ids)] if sums else oracle.tdt_sequence(model, frames[0], tuple(ids), most=9)[1]
        assert sum(s.asr for s in shares) == pytest.approx(expected, abs=1e-6)
        assert all(s.asr <= 1e-6 for s in shares)
