"""Narrow beams against a search that is slow and obvious: what is pruned, where, and by which score."""

from __future__ import annotations

import math
import random

import pytest
import torch

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.runtime.state import select
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from tests.beam_oracle import assert_same, attention_beam, repeats, transducer_beam
from tests.phrase_oracle import drawn_phrases
from tests.search.test_attention import decoder, features
from tests.search.test_transducer import acoustics, language_model, subtracted_scorer, transducer

BEAMS = pytest.mark.parametrize("beam", [1, 2, 3, 4])
UNITS = 6


def fusion_of(draw, lm, subtracted, tokens):
    mu = draw.choice([0.0, 0.3, 0.8]) if subtracted is not None else 0.0
    lengths, shares = [0.0, 0.6, -0.4], [0.0, 0.0, 0.05, 0.5]
    choices = [0.0, 0.5, 1.5], [mu], lengths, shares, [0.0, 0.5, 2.0]
    weights = FusionWeights(*(draw.choice(values) for values in choices))
    return Fusion(lm, subtracted, weights, phrases=drawn_phrases(draw.random(), tokens)[0])


@BEAMS
@pytest.mark.parametrize("seed", range(16))
@torch.no_grad()
def test_transducer(seed, beam):
    draw = random.Random(100 * seed + beam)
    model = transducer(seed, UNITS, draw.choice(["lstm", "stateless"]), spread=draw.choice([3.0, 6.0]))
    subtracted = subtracted_scorer(draw.choice(["nothing", "internal", "internal", "source"]), model, seed, UNITS)
    fusion = fusion_of(draw, language_model(seed, UNITS), subtracted, model.tokens)
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
    lengths = torch.tensor([6, 3, 0])
    limits = torch.tensor([draw.choice([2, 4, 99]) for _ in lengths])
    f = acoustics(seed, 6, batch=3)
    lists = TransducerSearch(model, fusion, options)(f, lengths, limits)
    for b, frames in enumerate(lengths.tolist()):
        expected = transducer_beam(model, f[b, :frames], fusion, options, int(limits[b]))
        assert_same(lists[b], expected)
        assert [h.times for h in lists[b]] == [parts.times for _, _, parts in expected]


@BEAMS
@pytest.mark.parametrize("seed", range(24))
@torch.no_grad()
def test_attention(seed, beam):
    draw = random.Random(100 * seed + beam)
    model = decoder(seed, UNITS, filters=draw.choice([0, 2]))
    subtracted = {
        "nothing": lambda: None,
        "internal": lambda: AttentionInternalLM(model),
        "source": lambda: language_model(seed + 7, UNITS),
    }[draw.choice(["nothing", "internal", "internal", "source"])]()
    fusion = fusion_of(draw, language_model(seed, UNITS), subtracted, model.tokens)
    max_repeats = draw.choice([0, 1, 2])
    nbest = draw.choice([0, 1])
    options = AttentionOptions(
        beam=beam,
        nbest=nbest,
        max_length=draw.choice([4, 7]),
        length_normalisation=draw.choice([0.0, 0.5, 1.0]),
        lm_eos=draw.random() < 0.5,
        subtracted_eos=draw.choice([None, True, False]),
        end_margin=draw.choice([0.5, 2.0, math.inf]),
        certain_end=draw.choice([0.5, 2.0, math.inf]),
        max_repeats=max_repeats,
        repeat_span=draw.choice([1, 2, 3]),
        repeat_ignores=draw.choice([(), (3,)]) if max_repeats else (),
        stop_margin=draw.choice([0.0, 0.5, 1.0, 3.0, math.inf]),
        stop_after=draw.choice([0, 0, 1, nbest or beam]),
    )
    limits = torch.tensor([draw.choice([0, 2, 99]), 99, draw.choice([3, 99])])
    memory = model.encode(features(seed, 9, batch=3), torch.tensor([9, 4, 6]))
    lists = AttentionSearch(model, fusion, options)(memory, limits)
    for b in range(3):
        alone = select(memory, torch.tensor([b]))
        assert_same(lists[b], attention_beam(model, alone, fusion, options, int(limits[b])))


def test_the_oracles_own_count_of_repetitions():
    assert repeats((4, 4, 4), 2, 1) and not repeats((4, 4), 2, 1)
    assert repeats((9, 1, 2, 1, 2), 1, 2) and not repeats((9, 1, 2, 1, 2), 1, 1)
    assert repeats((4, 3, 4, 4), 2, 1, passed_over=(3,)) and not repeats((4, 3, 4, 3), 1, 1, passed_over=(3,))
