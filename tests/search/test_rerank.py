"""Exact ranking against brute force: every alignment of a transducer's hypotheses, every step of a decoder's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.packed import pack, packed_copy
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.rerank import ExactRanking, attention_scores, transducer_scores
from ilme.search.transducer import TransducerOptions, TransducerSearch
from tests import oracle
from tests.search import test_attention, test_transducer

WEIGHTS = FusionWeights(lm=0.4, subtracted=0.3, length=0.2)


def fused(model, seed, units, weights=WEIGHTS):
    return Fusion(test_transducer.language_model(seed, units), TransducerInternalLM(model), weights)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from(["lstm", "stateless"]))
def test_all_alignments_of_each_hypothesis_are_summed(seed, frames, prediction):
    model = test_transducer.transducer(seed, prediction=prediction)
    f = test_transducer.acoustics(seed, frames, batch=2)
    lengths = torch.tensor([frames, max(1, frames - 1)])
    lists = TransducerSearch(model, options=TransducerOptions(beam=6))(f, lengths)
    found = iter(transducer_scores(model, f, lengths, lists, band=frames))
    for b, nbest in enumerate(lists):
        for h in nbest:
            most = max(1, len(h.tokens))
            _, expected = oracle.transducer_sequence(model, f[b, : lengths[b]], h.tokens, most=most)
            assert next(found) == pytest.approx(expected, abs=1e-9)


def test_a_band_leaves_alignments_out_and_never_adds_any():
    model, f = test_transducer.transducer(3, units=5), test_transducer.acoustics(3, 12)
    lengths = torch.tensor([12])
    lists = TransducerSearch(model, options=TransducerOptions(beam=5))(f, lengths)
    scores = [transducer_scores(model, f, lengths, lists, band) for band in (0, 1, 3, 12)]
    for narrow, wide in itertools.pairwise(scores):
        assert all(a <= b + 1e-12 for a, b in zip(narrow, wide, strict=True))
    assert max(scores[0]) < max(scores[-1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([0.0, 0.2]), st.booleans(), st.booleans())
def test_the_order_is_that_of_the_exact_scores(seed, best, share, end, other_end):
    weights = replace(WEIGHTS, background=share)
    model = test_transducer.transducer(seed, units=4)
    f, lengths = test_transducer.acoustics(seed, 5, batch=2), torch.tensor([5, 4])
    fusion = fused(model, seed, 4)
    lists = TransducerSearch(model, fusion, TransducerOptions(beam=6))(f, lengths)
    wrong = [[replace(h, score=-h.score, scores=replace(h.scores, asr=0.0, lm=0.0)) for h in nbest] for nbest in lists]
    ranking = ExactRanking(
        model, weights, fusion.lm, fusion.subtracted, best=best, band=5, scores_end=end, subtracted_end=other_end
    )
    for b, (nbest, before) in enumerate(zip(ranking(wrong, (f, lengths)), wrong, strict=True)):
        first = nbest[:best]
        assert {h.tokens for h in first} == {h.tokens for h in before[:best]}
        assert [h.score for h in first] == sorted((h.score for h in first), reverse=True)
        assert nbest[best:] == before[best:]
        for h in first:
            _, asr = oracle.transducer_sequence(model, f[b, : lengths[b]], h.tokens, most=max(1, len(h.tokens)))
            lm = oracle.score_sequence(fusion.lm, h.tokens, end)
            internal = oracle.score_sequence(fusion.subtracted, h.tokens, other_end, share)
            expected = asr + 0.4 * lm - 0.3 * internal + 0.2 * len(h.tokens)
            assert h.score == pytest.approx(expected, abs=1e-9) == h.scores.fused(weights)


def test_scorers_that_are_not_given_keep_the_scores_of_the_search():
    model, f, lengths = test_transducer.transducer(5), test_transducer.acoustics(5, 6), torch.tensor([6])
    fusion = fused(model, 5, 3)
    lists = TransducerSearch(model, fusion, TransducerOptions(beam=4))(f, lengths)
    (ranked,) = ExactRanking(model, WEIGHTS, band=6)(lists, (f, lengths))
    before = {h.tokens: h for h in lists[0]}
    for h in ranked:
        assert h.scores.lm == before[h.tokens].scores.lm and h.scores.subtracted == before[h.tokens].scores.subtracted
        assert h.scores.asr >= before[h.tokens].scores.asr - 1e-9  # the search leaves out alignments that its beam lost


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_a_decoder_is_scored_label_by_label(seed, alpha):
    model = test_attention.decoder(seed)
    with torch.no_grad():
        memory = model.encode(test_attention.features(seed, 4, batch=2), torch.tensor([4, 3]))
    options = AttentionOptions(beam=5, max_length=4, length_normalisation=alpha)
    lists = AttentionSearch(model, options=options)(memory)
    found = iter(attention_scores(model, memory, lists))
    assert all(next(found) == pytest.approx(h.scores.asr, abs=1e-9) for nbest in lists for h in nbest)
    ranking = ExactRanking(model, FusionWeights(), length_normalisation=alpha, scores_end=True)
    for nbest, before in zip(ranking(lists, memory), lists, strict=True):
        assert [h.tokens for h in nbest] == [h.tokens for h in before]
        assert all(a.score == pytest.approx(b.score, abs=1e-9) for a, b in zip(nbest, before, strict=True))


def test_float32_layers_bring_int8_nearer_to_the_exact_scores():
    exact = test_transducer.transducer(11, units=40, dtype=torch.float32, spread=6.0)
    f, lengths = test_transducer.acoustics(11, 40, batch=3, dtype=torch.float32), torch.tensor([40, 31, 40])
    rounded = pack(packed_copy(exact, "float32"), "int8")
    lists = TransducerSearch(rounded, options=TransducerOptions(beam=6))(f, lengths)
    true, coarse, finer = (
        torch.tensor(transducer_scores(model, f, lengths, lists, band=40))
        for model in (exact, rounded, packed_copy(rounded, "int8", linear="float32"))
    )
    assert (finer - true).abs().mean() < 0.5 * (coarse - true).abs().mean()
    whole = torch.tensor(transducer_scores(packed_copy(rounded, "float32"), f, lengths, lists, band=40))
    assert (whole - true).abs().max() < 1e-3  # a float32 copy of an int8 network has nothing of its rounding


def test_nothing_to_rank_is_no_error_and_bad_input_is_named():
    model, f, lengths = test_transducer.transducer(0), test_transducer.acoustics(0, 3), torch.tensor([3])
    ranking = ExactRanking(model, FusionWeights())
    assert ranking([], (f[:0], lengths[:0])) == []
    (nbest,) = TransducerSearch(model, options=TransducerOptions(beam=2))(f, lengths)
    with pytest.raises(BadInputError, match="frame times"):
        ranking([[replace(h, times=None) for h in nbest]], (f, lengths))
    with pytest.raises(BadInputError, match="best must be at least 1"):
        ExactRanking(model, FusionWeights(), best=0)


def windows(hypotheses, frames, band):
    """The first and the last frame of each prefix: hypotheses that begin alike share them, as wide as any needs."""
    found = {}
    for h in hypotheses:
        for u in range(len(h.tokens) + 1):
            first = max(0, h.times[u - 1] - band) if u else 0
            last = min(frames - 1, h.times[u] + band) if u < len(h.tokens) else frames - 1
            known = found.get(h.tokens[:u], (first, last))
            found[h.tokens[:u]] = min(first, known[0]), max(last, known[1])
    return found


def banded(model, f, h, allowed):
    """log P(y|x) over the alignments whose every node (frame, prefix) is allowed, one at a time."""
    T, U = len(f), len(h.tokens)
    g, state = model.start(1)
    rows = []
    for u in range(U + 1):
        rows.append([model.join(f[t : t + 1], g)[0].log_softmax(-1) for t in range(T)])
        if u < U:
            g, state = model.predict(torch.tensor([h.tokens[u]]), state)
    scores = []
    for emitted in itertools.combinations_with_replacement(range(T), U):
        stays = list(zip((0, *emitted), (*emitted, T - 1), strict=True))  # from which frame to which each prefix lives
        bounds = [allowed[h.tokens[:u]] for u in range(U + 1)]
        if all(first <= a and b <= last for (a, b), (first, last) in zip(stays, bounds, strict=True)):
            blanks = [rows[u][t][0] for u, (a, b) in enumerate(stays) for t in range(a, b + (u == U))]
            labels = [rows[u][t][label] for u, (label, t) in enumerate(zip(h.tokens, emitted, strict=True))]
            scores.append(torch.stack(blanks + labels).sum())
    return torch.stack(scores).logsumexp(0).item()


@pytest.mark.parametrize("band", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_band_is_so_many_frames_around_each_label(seed, band):
    model, f = test_transducer.transducer(seed, units=5), test_transducer.acoustics(seed, 6)
    lengths = torch.tensor([6])
    longer = Fusion(weights=FusionWeights(length=1.5))
    (nbest,) = TransducerSearch(model, longer, TransducerOptions(beam=4, max_symbols=1))(f, lengths)
    assert max(len(h.tokens) for h in nbest) > 1, "else there is no band"
    for chosen in (nbest[-1:], nbest, nbest[::-1]):
        allowed = windows(chosen, 6, band)
        expected = [banded(model, f[0], h, allowed) for h in chosen]
        assert transducer_scores(model, f, lengths, [chosen], band) == pytest.approx(expected, abs=1e-9)


def test_the_edges_of_its_options():
    model = test_transducer.transducer(0)
    assert ExactRanking(model, WEIGHTS, best=1, band=0).best == 1
    for wrong in ({"best": 0}, {"band": -1}):
        with pytest.raises(BadInputError, match="best must be at least 1 and band at least 0"):
            ExactRanking(model, WEIGHTS, **wrong)


@pytest.mark.parametrize(
    ("end", "own", "subtracted"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_the_end_is_part_of_the_lms_scores_where_the_search_scores_it(end, own, subtracted):
    """Of the subtracted LM too, unless it has its own choice."""
    model, f, lengths = test_transducer.transducer(5, units=4), test_transducer.acoustics(5, 5), torch.tensor([5])
    lm, other = test_transducer.language_model(5, 4), test_transducer.language_model(8, 4)
    lists = TransducerSearch(model, Fusion(lm, other, WEIGHTS), TransducerOptions(beam=4))(f, lengths)
    (ranked,) = ExactRanking(model, WEIGHTS, lm, other, band=5, scores_end=end, subtracted_end=own)(lists, (f, lengths))
    assert len(ranked) == 4
    for h in ranked:
        assert h.scores.lm == pytest.approx(oracle.score_sequence(lm, h.tokens, end=end), abs=1e-9)
        assert h.scores.subtracted == pytest.approx(oracle.score_sequence(other, h.tokens, end=subtracted), abs=1e-9)
