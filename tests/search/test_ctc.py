"""The CTC search against brute force over alignments, narrow beams against a plain search, and itself in pieces."""

from __future__ import annotations

import random

import pytest
import torch

from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.search.ctc import CTCOptions, CTCSearch
from ilme.testing import numbered_tokens
from tests import oracle
from tests.beam_oracle import assert_same, ctc_beam
from tests.phrase_oracle import drawn_phrases
from tests.search.test_transducer import language_model

WIDTH = 5


class Frames:
    """A CTC model without an encoder; implements `ilme.protocols.CTCModel`."""

    def __init__(self, seed: int, units: int, spread: float = 1.5, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens, self.device = numbered_tokens(units, "transducer"), torch.device("cpu")
        self.weight = torch.randn(units, WIDTH, generator=generator, dtype=dtype) * spread
        self.bias = torch.randn(units, generator=generator, dtype=dtype)

    def encode(self, features, lengths):
        return features, lengths

    def emit(self, h):
        return self.bias if h is None else h @ self.weight.T + self.bias


def heard(seed, frames, batch=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, WIDTH, generator=generator, dtype=torch.float64)


def fusion_of(draw, seed, units):
    mu = draw.choice([0.0, 0.4, 0.9])
    weights = FusionWeights(
        draw.choice([0.0, 0.5, 1.5]), mu, draw.choice([0.0, 0.7, -0.4]), draw.choice([0.0, 0.1]) if mu else 0.0,
        draw.choice([0.0, 0.5, 2.0]),
    )  # fmt: skip
    phrases, _ = drawn_phrases(seed, numbered_tokens(units, "transducer"))
    lms = language_model(seed, units), language_model(seed + 7, units) if mu else None
    return Fusion(*lms, weights, phrases=phrases)


@pytest.mark.parametrize("seed", range(12))
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(seed):
    draw = random.Random(seed)
    units, frames = draw.choice([(2, 6), (3, 5), (4, 4)])
    model, fusion = Frames(seed, units), fusion_of(draw, seed, units)
    ends = draw.random() < 0.5, draw.random() < 0.5
    h = heard(seed, frames)
    (found,) = CTCSearch(model, fusion, CTCOptions(beam=400, lm_eos=ends[0], subtracted_eos=ends[1]))(
        h, torch.tensor([frames])
    )
    _, bonus = drawn_phrases(seed, model.tokens)
    expected = oracle.ctc_best(model, h[0], fusion.lm, fusion.subtracted, fusion.weights, ends, bonus)
    assert [h.tokens for h in found] == [y for _, y, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in expected], abs=1e-9)
    assert [h.scores.asr for h in found] == pytest.approx([asr for _, _, asr in expected], abs=1e-9)
    assert torch.tensor([h.scores.asr for h in found]).exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("beam", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(16))
@torch.no_grad()
def test_narrow_beams_prune_as_a_plain_search_does(seed, beam):
    draw = random.Random(100 * seed + beam)
    model, fusion = Frames(seed, 6, spread=draw.choice([1.0, 2.5])), fusion_of(draw, seed, 6)
    options = CTCOptions(
        beam=beam,
        nbest=draw.choice([0, 1]),
        lm_eos=draw.random() < 0.5,
        subtracted_eos=draw.choice([None, True, False]),
        max_repeats=draw.choice([0, 0, 1, 2]),
        repeat_span=draw.choice([1, 2, 3]),
    )
    lengths = torch.tensor([9, 5, 0])
    limits = torch.tensor([draw.choice([2, 4, 99]) for _ in lengths])
    h = heard(seed, 9, batch=3)
    lists = CTCSearch(model, fusion, options)(h, lengths, limits)
    for b, frames in enumerate(lengths.tolist()):
        expected = ctc_beam(model, h[b, :frames], fusion, options, int(limits[b]))
        assert_same(lists[b], expected)
        assert [x.times for x in lists[b]] == [parts.times for _, _, parts in expected]


@torch.no_grad()
def test_chunks_give_what_the_whole_gives():
    model, fusion = Frames(3, 6), fusion_of(random.Random(1), 3, 6)
    search = CTCSearch(model, fusion, CTCOptions(beam=4))
    h = heard(3, 300, batch=2)
    stream = search.stream(2)
    for chunk in h.split([1, 7, 130, 162], dim=1):
        stream.feed(chunk)
    assert stream.partial()[0].tokens
    assert stream.finish() == search(h, torch.tensor([300, 300]))


@torch.no_grad()
def test_a_batch_gives_what_each_gives_alone():
    model, fusion = Frames(4, 6), fusion_of(random.Random(2), 4, 6)
    search = CTCSearch(model, fusion, CTCOptions(beam=3))
    h, lengths = heard(4, 12, batch=3), torch.tensor([12, 4, 9])
    h[1, 4:] = torch.nan  # what stands after the end is never read
    together = search(h, lengths)
    for b, frames in enumerate(lengths.tolist()):
        assert search(h[b : b + 1, :frames], lengths[b : b + 1])[0] == together[b]


@torch.no_grad()
def test_a_label_is_said_twice_only_with_a_blank_between():
    model = Frames(0, 3)
    rows = {"a": [0.0, -50.0, 9.0], "-": [9.0, -50.0, 0.0]}
    model.weight, model.bias = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for said, expected in (("aaa", (2,)), ("a-a", (2, 2)), ("-aa-", (2,)), ("a--aa", (2, 2)), ("---", ())):
        h = torch.tensor([[rows[c] for c in said]], dtype=torch.float64)
        ((best, *_),) = CTCSearch(model, options=CTCOptions(beam=4))(h, torch.tensor([len(said)]))
        assert best.tokens == expected, said


@torch.no_grad()
def test_units_that_are_never_put_out_stay_out_whatever_is_subtracted():
    model = Frames(5, 5)
    model.bias[1] = -torch.inf
    lm = language_model(5, 5)
    lm.output.bias[1] = -torch.inf  # and an internal LM says the same: −inf − (−inf) is no number
    fusion = Fusion(language_model(6, 5), lm, FusionWeights(0.4, 0.5))
    for nbest in CTCSearch(model, fusion, CTCOptions(beam=6))(heard(5, 7, 2), torch.tensor([7, 7])):
        assert len(nbest) == 6 and all(1 not in x.tokens and x.score == x.score for x in nbest)


def test_options_say_what_is_wrong():
    with pytest.raises(BadInputError, match="beam must be a whole number of at least 1"):
        CTCOptions(beam=0)
    with pytest.raises(BadInputError, match="nbest=3 cannot exceed beam=2"):
        CTCOptions(beam=2, nbest=3)
    with pytest.raises(BadInputError, match="labels_per_second"):
        CTCOptions(labels_per_second=-1.0)
    model = Frames(0, 4)
    model.tokens = numbered_tokens(4, "attention")
    with pytest.raises(BadInputError, match="no blank"):
        CTCSearch(model)
    with pytest.raises(BadInputError, match=r"expected encoder outputs of shape \(2, T, E\)"):
        CTCSearch(Frames(0, 4)).stream(2).feed(heard(0, 3))
