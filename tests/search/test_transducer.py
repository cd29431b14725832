"""The transducer search against brute force, and against itself in other arrangements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.encoder import EncoderConfig
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.models.rnnt import RNNT, RNNTConfig
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import numbered_tokens
from tests import oracle
from tests.phrase_oracle import drawn_phrases

SMALL = RNNTConfig(
    encoder=EncoderConfig(features=5, hidden=6, layers=1),
    embedding=4, prediction_hidden=6, prediction_layers=2, projection=5, joint=6,
)  # fmt: skip


def transducer(seed, units=3, prediction="lstm", dtype=torch.float64, spread=3.0, hat=False):
    torch.manual_seed(seed)
    config = RNNTConfig(**{**SMALL.__dict__, "prediction": prediction, "hat": hat})
    model = RNNT(config, numbered_tokens(units, "transducer")).to(dtype).eval()
    with torch.no_grad():
        model.output.weight.mul_(spread)
    return model


def language_model(seed, units=3, dtype=torch.float64):
    torch.manual_seed(1000 + seed)
    lm = LSTMLM(LSTMLMConfig(embedding=4, hidden=5, layers=1), numbered_tokens(units, "attention")).to(dtype).eval()
    with torch.no_grad():
        lm.output.bias.normal_()
    return lm


def acoustics(seed, frames, batch=1, dtype=torch.float64):
    return torch.randn(batch, frames, SMALL.joint, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2


def subtracted_scorer(name, model, seed, units):
    return {
        "nothing": lambda: None,
        "internal": lambda: TransducerInternalLM(model),
        "source": lambda: language_model(seed + 7, units),
    }[name]()


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "frames": st.integers(1, 3),
        "units": st.integers(2, 3),
        "most": st.integers(1, 2),
        "prediction": st.sampled_from(["lstm", "stateless"]),
        "hat": st.booleans(),
        "lm": st.sampled_from([0.0, 0.3, 0.9]),
        "mu": st.sampled_from([0.0, 0.2, 0.7]),
        "length": st.sampled_from([0.0, 0.5, -0.3]),
        "subtracted": st.sampled_from(["nothing", "internal", "source"]),
        "share": st.sampled_from([0.0, 0.1, 0.6]),
        "kappa": st.sampled_from([0.0, 0.5, 2.0]),
        "end": st.booleans(),
        "other_end": st.sampled_from([None, True, False]),
        "blank_aware": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cases)
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(case):
    model = transducer(case["seed"], case["units"], case["prediction"], hat=case["hat"])
    lm = language_model(case["seed"], case["units"])
    subtracted = subtracted_scorer(case["subtracted"], model, case["seed"], case["units"])
    lms = case["lm"], case["mu"] if subtracted else 0.0
    weights = FusionWeights(*lms, case["length"], case["share"], case["kappa"])
    phrases, bonus = drawn_phrases(case["seed"], model.tokens)
    f = acoustics(case["seed"], case["frames"])
    options = TransducerOptions(
        beam=130, max_symbols=case["most"], lm_eos=case["end"], subtracted_eos=case["other_end"],
        blank_aware=case["blank_aware"],
    )  # fmt: skip
    ends = case["end"], case["end"] if case["other_end"] is None else case["other_end"]
    search = TransducerSearch(model, Fusion(lm, subtracted, weights, phrases=phrases), options)
    (found,) = search(f, torch.tensor([case["frames"]]))

    expected = oracle.transducer_best(
        model, f[0], lm if weights.lm else None, subtracted if weights.subtracted else None, weights,
        case["most"], ends, case["blank_aware"], bonus,
    )  # fmt: skip
    assert len(found) == len(expected)
    for hypothesis, (score, _, _) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
    by_labels = {labels: (score, asr) for score, labels, asr in expected}
    for hypothesis in found:
        score, asr = by_labels[hypothesis.tokens]
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.scores.asr == pytest.approx(asr, abs=1e-9)
        assert hypothesis.scores.phrases == (bonus(hypothesis.tokens) if weights.phrases else 0.0)
        assert len(hypothesis.times) == len(hypothesis.tokens)
        assert list(hypothesis.times) == sorted(hypothesis.times)


def everything(model, seed, units, dtype=torch.float64, **options):
    scorers = language_model(seed, units, dtype), TransducerInternalLM(model)
    fusion = Fusion(*scorers, FusionWeights(0.4, 0.3, 0.1, phrases=0.5), phrases=drawn_phrases(seed, model.tokens)[0])
    return TransducerSearch(model, fusion, TransducerOptions(**options))


def assert_same(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.times for h in a] == [h.times for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=tolerance)
        assert [h.scores.asr for h in a] == pytest.approx([h.scores.asr for h in b], abs=tolerance)


@pytest.mark.parametrize("prediction", ["lstm", "stateless"])
@pytest.mark.parametrize("seed", range(4))
def test_batched_equals_unbatched_and_permuted(seed, prediction):
    model = transducer(seed, units=9, prediction=prediction)
    search = everything(model, seed, 9, beam=6)
    lengths = torch.tensor([11, 1, 7, 14])
    f = acoustics(seed, 14, batch=4)
    together = search(f, lengths)
    apart = [search(f[b : b + 1, : lengths[b]], lengths[b : b + 1])[0] for b in range(4)]
    assert_same(together, apart)
    order = torch.tensor([2, 0, 3, 1])
    assert_same(search(f[order], lengths[order]), [together[i] for i in order])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunks_give_the_same_as_the_whole(seed, chunk):
    model = transducer(seed, units=9)
    search = everything(model, seed, 9, beam=6, lm_eos=True)
    f, lengths = acoustics(seed, 13, batch=2), torch.tensor([13, 10])
    stream = search.stream(2)
    for start in range(0, 13, chunk):
        part = f[:, start : start + chunk]
        stream.feed(part, (lengths - start).clamp(0, part.shape[1]))
        assert all(h.tokens is not None for h in stream.partial())
    assert_same(stream.finish(), search(f, lengths))


def test_float32_finds_the_same_within_1e_4():
    for seed in range(20):
        options = TransducerOptions(beam=40, max_symbols=2)
        results = []
        for dtype in (torch.float64, torch.float32):
            model = transducer(seed, units=4, dtype=dtype)
            fusion = Fusion(language_model(seed, 4, dtype), TransducerInternalLM(model), FusionWeights(0.4, 0.3))
            f = acoustics(seed, 5).to(dtype)
            results.append(TransducerSearch(model, fusion, options)(f, torch.tensor([5]))[0][0])
        assert results[0].tokens == results[1].tokens
        assert results[0].score == pytest.approx(results[1].score, abs=1e-4)


def test_bfloat16_runs_and_scores_in_float32():
    model = transducer(1, units=6, dtype=torch.bfloat16)
    search = everything(model, 1, 6, torch.bfloat16, beam=5)
    (found,) = search(acoustics(1, 8).bfloat16(), torch.tensor([8]))
    exact = transducer(1, units=6, dtype=torch.float32)
    (reference,) = everything(exact, 1, 6, torch.float32, beam=5)(acoustics(1, 8).float(), torch.tensor([8]))
    assert found[0].score == pytest.approx(reference[0].score, abs=0.3)


class Forbidden:
    """A scorer that must not be called."""

    def __init__(self, tokens):
        self.tokens, self.device = tokens, torch.device("cpu")

    def start(self, n):
        raise AssertionError("a scorer of weight 0 was called")

    score = finish = start


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_zero_change_no_bit_and_call_no_scorer(seed):
    model = transducer(seed, units=7, dtype=torch.float32)
    f, lengths = acoustics(seed, 9, dtype=torch.float32), torch.tensor([9])
    scorer = Forbidden(numbered_tokens(7, "attention"))
    plain = TransducerSearch(model)(f, lengths)
    fused = TransducerSearch(model, Fusion(scorer, scorer, FusionWeights()))(f, lengths)
    assert [h.score for h in plain[0]] == [h.score for h in fused[0]]
    assert [h.tokens for h in plain[0]] == [h.tokens for h in fused[0]]


class Aloof:
    """An internal LM that does not say whose it is, so that the search cannot share work with it."""

    def __init__(self, scorer):
        self.tokens, self.device = scorer.tokens, scorer.device
        self.start, self.score, self.finish = scorer.start, scorer.score, scorer.finish


def test_sharing_the_prediction_network_changes_nothing():
    model = transducer(3, units=9)
    f, lengths = acoustics(3, 12, batch=2), torch.tensor([12, 9])
    weights = FusionWeights(0.0, 0.4)
    shared = TransducerSearch(model, Fusion(None, TransducerInternalLM(model), weights))(f, lengths)
    apart = TransducerSearch(model, Fusion(None, Aloof(TransducerInternalLM(model)), weights))(f, lengths)
    assert_same(shared, apart)


class Counting:
    """Counts the label sequences that a scorer is asked for."""

    def __init__(self, scorer):
        self.scorer, self.asked = scorer, []
        self.tokens, self.device, self.start, self.finish = (
            scorer.tokens,
            scorer.device,
            scorer.start,
            scorer.finish,
        )

    def score(self, labels, state):
        self.asked.append(len(labels))
        return self.scorer.score(labels, state)


def test_a_sequence_is_scored_once_and_never_on_blank():
    """With room for every sequence, the LM is asked once for each that is ever extended, not once per frame."""
    model, frames = transducer(5, units=3), 4
    lm = Counting(language_model(5, 3))
    options = TransducerOptions(beam=40, max_symbols=1)
    TransducerSearch(model, Fusion(lm, None, FusionWeights(0.5)), options)(acoustics(5, frames), torch.tensor([frames]))
    distinct = sum(2**length for length in range(1, frames))  # the longest ones are never extended
    assert sum(lm.asked) == distinct


@pytest.mark.slow
def test_wider_beams_are_not_worse_on_average():
    best = {}
    for beam in (1, 4, 8, 25):
        scores = []
        for seed in range(30):
            model = transducer(seed, units=12, dtype=torch.float32, spread=2.0)
            search = everything(model, seed, 12, torch.float32, beam=beam)
            (found,) = search(acoustics(seed, 10, dtype=torch.float32), torch.tensor([10]))
            scores.append(found[0].score)
        best[beam] = sum(scores) / len(scores)
    assert list(best.values()) == sorted(best.values()), best


def spiky(seed, units=30):
    """A model that is sure of blank at most frames, as trained ones are, and its acoustics."""
    model = transducer(seed, units, dtype=torch.float64, spread=1.0)
    f = acoustics(seed, 40, batch=2) * 0.1
    with torch.no_grad():
        model.output.bias[0] = 9.0
        model.output.weight[1:].mul_(6)
        model.output.weight[0].mul_(0.2)
    f[:, ::7] = acoustics(seed + 1, 6, batch=2) * 6
    return model, f


@pytest.mark.parametrize("seed", range(5))
def test_the_blank_gate_saves_the_vocabulary_and_keeps_the_result(seed):
    model, f = spiky(seed)
    lengths = torch.tensor([40, 33])
    exact = everything(model, seed, 30, beam=8)(f, lengths)
    rows, join = [], model.join
    model.join = lambda f, g: (rows.append(len(g)), join(f, g))[1]
    plain = everything(model, seed, 30, beam=8)(f, lengths)
    without, _ = sum(rows), rows.clear()
    gated = everything(model, seed, 30, beam=8, blank_gate=0.02, shortlist=8)(f, lengths)
    assert_same(plain, exact)
    assert sum(rows) < 0.7 * without
    for a, b in zip(gated, exact, strict=True):
        assert a[0].tokens == b[0].tokens
        assert a[0].score == pytest.approx(b[0].score, abs=0.02)
    whole = everything(model, seed, 30, beam=8, blank_gate=1e-9, shortlist=29)(f, lengths)
    assert_same(whole, exact, 1e-7)  # with every unit on the shortlist the estimate is exact


def test_an_utterance_without_frames_is_the_empty_sequence():
    model = transducer(0, units=5)
    found = TransducerSearch(model)(acoustics(0, 3, batch=2), torch.tensor([3, 0]))
    assert found[1][0].tokens == () and found[1][0].score == 0.0
    assert len(found[0]) > 1
    assert TransducerSearch(model)(acoustics(0, 3, batch=1)[:0], torch.zeros(0, dtype=torch.long)) == []


def test_bad_options_and_scorers_are_named():
    model = transducer(0, units=5)
    with pytest.raises(BadInputError, match="beam must be a whole number of at least 1, got 0"):
        TransducerOptions(beam=0)
    with pytest.raises(BadInputError, match=r"nbest=9 cannot exceed beam=4"):
        TransducerOptions(beam=4, nbest=9)
    with pytest.raises(BadInputError, match="must not be negative"):
        FusionWeights(subtracted=-0.1)
    with pytest.raises(BadInputError, match="finite"):
        FusionWeights(lm=float("nan"))
    with pytest.raises(BadInputError, match="no lm scorer was given"):
        Fusion(weights=FusionWeights(lm=0.2))
    with pytest.raises(VocabularyMismatchError, match="5 tokens and the lm scorer 6"):
        TransducerSearch(model, Fusion(language_model(0, 6), None, FusionWeights(0.2)))
    with pytest.raises(BadInputError, match=r"expected acoustic terms of shape \(2, T, J\)"):
        TransducerSearch(model).stream(2).feed(acoustics(0, 3))
