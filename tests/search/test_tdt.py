"""The search over labels and durations against brute force, a plain beam search, and itself in pieces."""

from __future__ import annotations

import random

import pytest
import torch

from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.tdt import TDTSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from tests import oracle
from tests.beam_oracle import assert_same, tdt_beam
from tests.phrase_oracle import drawn_phrases
from tests.search.test_transducer import acoustics, language_model, transducer


class Durations:
    """A transducer of ours with a layer for durations; implements `ilme.protocols.DurationTransducer`."""

    def __init__(self, seed, units=4, durations=(0, 1, 2), spread=3.0, dtype=torch.float64):
        self.network = transducer(seed, units, spread=spread, dtype=dtype)
        self.tokens, self.device, self.durations = self.network.tokens, self.network.device, durations
        generator = torch.Generator().manual_seed(seed)
        width = self.network.config.joint
        self.weight = 2 * torch.randn(len(durations), width, generator=generator, dtype=dtype)
        self.start, self.predict, self.join = self.network.start, self.network.predict, self.network.join

    def join_durations(self, f, g):
        return self.join(f, g), torch.tanh(f + g) @ self.weight.T


def fusion_of(draw, model, seed, units):
    mu = draw.choice([0.0, 0.3, 0.8])
    subtracted = draw.choice([TransducerInternalLM(model), language_model(seed + 7, units)]) if mu else None
    choices = [0.0, 0.5, 1.5], [mu], [0.0, 0.6, -0.4], [0.0, 0.1] if mu else [0.0], [0.0, 0.5, 2.0]
    weights = FusionWeights(*(draw.choice(values) for values in choices))
    return Fusion(language_model(seed, units), subtracted, weights, phrases=drawn_phrases(seed, model.tokens)[0])


@pytest.mark.parametrize("seed", range(16))
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(seed):
    draw = random.Random(seed)
    durations, frames, units = draw.choice([((0, 1, 2), 3, 3), ((0, 1, 2, 3, 4), 2, 3), ((1, 3), 4, 3), ((2, 0), 3, 2)])
    most = draw.choice([1, 2])
    model = Durations(seed, units, durations)
    fusion = fusion_of(draw, model, seed, units)
    ends, aware = (draw.random() < 0.5, draw.random() < 0.5), draw.random() < 0.5
    f = acoustics(seed, frames)
    options = TransducerOptions(beam=200, max_symbols=most, lm_eos=ends[0], subtracted_eos=ends[1], blank_aware=aware)
    (found,) = TDTSearch(model, fusion, options)(f, torch.tensor([frames]))
    _, bonus = drawn_phrases(seed, model.tokens)
    longest = frames * most if 0 in durations else frames
    expected = oracle.tdt_best(
        model, f[0], longest, fusion.lm, fusion.subtracted, fusion.weights, most, ends, aware, bonus
    )
    assert [h.tokens for h in found] == [y for _, y, _ in expected[: len(found)]]
    assert len(found) == min(200, len(expected))
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in expected[: len(found)]], abs=1e-9)
    assert [h.scores.asr for h in found] == pytest.approx([asr for _, _, asr in expected[: len(found)]], abs=1e-9)


@pytest.mark.parametrize("beam", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(12))
@torch.no_grad()
def test_narrow_beams_prune_as_a_plain_search_does(seed, beam):
    draw = random.Random(100 * seed + beam)
    durations = draw.choice([(0, 1, 2, 3, 4), (0, 1, 2), (1, 2, 4), (3, 0, 1)])
    model = Durations(seed, 6, durations, spread=draw.choice([3.0, 6.0]))
    fusion = fusion_of(draw, model, seed, 6)
    options = TransducerOptions(
        beam=beam,
        nbest=draw.choice([0, 1]),
        max_symbols=draw.choice([1, 2, 3]),
        lm_eos=draw.random() < 0.5,
        subtracted_eos=draw.choice([None, True, False]),
        blank_aware=draw.random() < 0.4,
        max_repeats=draw.choice([0, 0, 1, 2]),
        repeat_span=draw.choice([1, 2, 3]),
    )
    lengths = torch.tensor([7, 4, 0])
    limits = torch.tensor([draw.choice([2, 4, 99]) for _ in lengths])
    f = acoustics(seed, 7, batch=3)
    lists = TDTSearch(model, fusion, options)(f, lengths, limits)
    for b, frames in enumerate(lengths.tolist()):
        expected = tdt_beam(model, f[b, :frames], fusion, options, int(limits[b]))
        assert_same(lists[b], expected)
        assert [x.times for x in lists[b]] == [parts.times for _, _, parts in expected]


@torch.no_grad()
def test_chunks_and_batches_give_what_the_whole_gives_alone():
    model = Durations(5, 6, (0, 1, 2, 3, 4))
    search = TDTSearch(model, fusion_of(random.Random(1), model, 5, 6), TransducerOptions(beam=4))
    f, lengths = acoustics(5, 24, batch=3), torch.tensor([24, 13, 19])
    together = search(f, lengths)
    for b, frames in enumerate(lengths.tolist()):
        alone = f[b : b + 1, :frames]
        (found,) = search(alone, lengths[b : b + 1])
        assert [(h.tokens, h.times) for h in found] == [(h.tokens, h.times) for h in together[b]]
        assert [h.score for h in found] == pytest.approx([h.score for h in together[b]], abs=1e-9)
        stream = search.stream(1)
        for chunk in alone.split([1, 2, 9, frames - 12], dim=1):
            stream.feed(chunk)
            assert stream.partial()
        assert stream.finish()[0] == found


@torch.no_grad()
def test_with_one_frame_for_blank_and_none_for_labels_it_is_an_rnnt():
    """P(d) is 1 for the one duration that there is a use for: alignments are an RNN-T's."""

    class Plain(Durations):
        def join_durations(self, f, g):
            return self.join(f, g), torch.zeros(len(g), 2, dtype=g.dtype)

    model = Plain(3, 4, (0, 1))
    f, lengths = acoustics(3, 5), torch.tensor([5])
    options = TransducerOptions(beam=400, max_symbols=1)
    (found,) = TDTSearch(model, None, options)(f, lengths)
    # with durations 0 and 1 a label may move on by itself; those alignments are the RNN-T's that have none of them
    asr = {h.tokens: oracle.tdt_sequence(model, f[0], h.tokens, most=1)[1] for h in found[:20]}
    assert all(h.scores.asr == pytest.approx(asr[h.tokens], abs=1e-9) for h in found[:20])
    (plain,) = TransducerSearch(model.network, None, options)(f, lengths)
    empty = next(h for h in found if not h.tokens)
    rnnt = next(h for h in plain if not h.tokens)
    assert empty.scores.asr == pytest.approx(rnnt.scores.asr - 5 * torch.tensor(2.0).log().item(), abs=1e-6)


def test_what_is_refused():
    with pytest.raises(BadInputError, match="at least one frame"):
        TDTSearch(Durations(0, 4, (0,)))
    with pytest.raises(BadInputError, match="blank_gate"):
        TDTSearch(Durations(0, 4), options=TransducerOptions(blank_gate=0.1))
