"""The label-synchronous search against brute force, and against itself in other arrangements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError, IlmeError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import EncoderConfig
from ilme.models.packed import pack, packed_copy
from ilme.search.attention import AttentionOptions, AttentionSearch, _largest, best_pairs
from ilme.testing import numbered_tokens
from tests import oracle
from tests.phrase_oracle import drawn_phrases
from tests.search.test_transducer import Aloof, Forbidden, language_model

SMALL = AEDConfig(
    encoder=EncoderConfig(features=5, hidden=4, layers=1, bidirectional=True, projection=6),
    decoder_hidden=6, decoder_layers=2, attention=5, filters=2, width=3,
)  # fmt: skip


def decoder(seed, units=3, dtype=torch.float64, filters=2):
    torch.manual_seed(seed)
    config = AEDConfig(**{**SMALL.__dict__, "filters": filters})
    model = AED(config, numbered_tokens(units, "attention")).to(dtype).eval()
    with torch.no_grad():
        model.output.weight.mul_(4)
        model.embedding.weight.mul_(2)
    return model


def features(seed, frames, batch=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, SMALL.encoder.features, generator=generator, dtype=dtype) * 2


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "frames": st.integers(1, 6),
        "units": st.integers(2, 4),
        "longest": st.integers(1, 3),
        "lm": st.sampled_from([0.0, 0.3, 0.9]),
        "mu": st.sampled_from([0.0, 0.2, 0.7]),
        "length": st.sampled_from([0.0, 0.5, -0.3]),
        "subtracted": st.sampled_from(["nothing", "internal", "source"]),
        "alpha": st.sampled_from([0.0, 0.6, 1.0]),
        "filters": st.sampled_from([0, 2]),
        "share": st.sampled_from([0.0, 0.1, 0.6]),
        "kappa": st.sampled_from([0.0, 0.5, 2.0]),
        "end": st.booleans(),
        "other_end": st.sampled_from([None, True, False]),
    }
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cases)
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(case):
    model = decoder(case["seed"], case["units"], filters=case["filters"])
    lm = language_model(case["seed"], case["units"])
    subtracted = {
        "nothing": lambda: None,
        "internal": lambda: AttentionInternalLM(model),
        "source": lambda: language_model(case["seed"] + 7, case["units"]),
    }[case["subtracted"]]()
    lms = case["lm"], case["mu"] if subtracted else 0.0
    weights = FusionWeights(*lms, case["length"], case["share"], case["kappa"])
    phrases, bonus = drawn_phrases(case["seed"], model.tokens)
    memory = model.encode(features(case["seed"], case["frames"]), torch.tensor([case["frames"]]))
    options = AttentionOptions(
        beam=130, max_length=case["longest"], length_normalisation=case["alpha"], stop_margin=float("inf"),
        lm_eos=case["end"], subtracted_eos=case["other_end"],
    )  # fmt: skip
    ends = case["end"], case["end"] if case["other_end"] is None else case["other_end"]
    (found,) = AttentionSearch(model, Fusion(lm, subtracted, weights, phrases=phrases), options)(memory)

    expected = oracle.attention_best(
        model, memory, case["longest"], lm if weights.lm else None, subtracted if weights.subtracted else None,
        weights, lambda score, n: score / (n + 1) ** case["alpha"], ends, bonus,
    )  # fmt: skip
    assert len(found) == len(expected)
    by_labels = {labels: (score, asr) for score, labels, asr in expected}
    for hypothesis, (best, _, _) in zip(found, expected, strict=True):
        score, asr = by_labels[hypothesis.tokens]
        assert hypothesis.score == pytest.approx(best, abs=1e-9)
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.scores.asr == pytest.approx(asr, abs=1e-9)
        assert hypothesis.scores.phrases == (bonus(hypothesis.tokens) if weights.phrases else 0.0)


def everything(model, seed, units, dtype=torch.float64, **options):
    scorers = language_model(seed, units, dtype), AttentionInternalLM(model)
    fusion = Fusion(*scorers, FusionWeights(0.4, 0.3, 0.1, phrases=0.5), phrases=drawn_phrases(seed, model.tokens)[0])
    return AttentionSearch(model, fusion, AttentionOptions(**{"max_length": 12, **options}))


def assert_same(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=tolerance)


@pytest.mark.parametrize("stop_margin", [2.0, float("inf")])
@pytest.mark.parametrize("seed", range(4))
def test_batched_equals_unbatched_and_permuted(seed, stop_margin):
    model = decoder(seed, units=9)
    search = everything(model, seed, 9, beam=5, stop_margin=stop_margin)
    lengths = torch.tensor([9, 2, 6, 12])
    x = features(seed, 12, batch=4)
    together = search(model.encode(x, lengths))
    apart = [search(model.encode(x[b : b + 1, : lengths[b]], lengths[b : b + 1]))[0] for b in range(4)]
    assert_same(together, apart)
    order = torch.tensor([2, 0, 3, 1])
    assert_same(search(model.encode(x[order], lengths[order])), [together[i] for i in order])


class SeldomLooking(AttentionSearch):
    """As on CUDA: utterances that are over stay in the batch for some steps."""

    def __init__(self, every, share, search):
        super().__init__(search.model, search.fusion, search.options)
        self.every, self.share = every, share

    def _may_look(self, over, step):
        return step % self.every == self.every - 1

    def _worth_retiring(self, over, finished):
        return finished > 0 and finished * self.share >= len(over)


@pytest.mark.parametrize(("every", "share"), [(3, 1), (4, 2), (8, 8)])
@pytest.mark.parametrize(
    "guards", [{"stop_after": 1}, {"stop_after": 3, "length_normalisation": 1.0}, {"stop_margin": 0.5}]
)
@pytest.mark.parametrize("seed", range(3))
def test_an_utterance_that_is_over_gains_nothing_while_others_go_on(seed, guards, every, share):
    model = decoder(seed, units=9)
    search = everything(model, seed, 9, beam=4, **guards)
    memory = model.encode(features(seed, 12, batch=6), torch.tensor([9, 2, 6, 12, 1, 4]))
    assert_same(SeldomLooking(every, share, search)(memory), search(memory))


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_best_pairs_are_the_same_in_two_stages(seed, parents, units, count):
    scores = torch.randperm(2 * parents * units, generator=torch.Generator().manual_seed(seed)).float()
    scores = scores.view(2, parents, units)
    count = min(count, parents * units)
    for a, b in zip(best_pairs(scores, count, two_stages=True), best_pairs(scores, count), strict=True):
        assert torch.equal(a, b)


def test_float32_finds_the_same_within_1e_4():
    for seed in range(20):
        results = []
        for dtype in (torch.float64, torch.float32):
            model = decoder(seed, units=4, dtype=dtype)
            search = everything(model, seed, 4, dtype, beam=60, max_length=4)
            results.append(search(model.encode(features(seed, 6).to(dtype), torch.tensor([6])))[0][0])
        assert results[0].tokens == results[1].tokens
        assert results[0].score == pytest.approx(results[1].score, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_zero_change_no_bit_and_call_no_scorer(seed):
    model = decoder(seed, units=7, dtype=torch.float32)
    memory = model.encode(features(seed, 6, dtype=torch.float32), torch.tensor([6]))
    scorer = Forbidden(numbered_tokens(7, "attention"))
    options = AttentionOptions(max_length=10)
    plain = AttentionSearch(model, None, options)(memory)
    fused = AttentionSearch(model, Fusion(scorer, scorer, FusionWeights()), options)(memory)
    assert [(h.score, h.tokens) for h in plain[0]] == [(h.score, h.tokens) for h in fused[0]]


@pytest.mark.parametrize("acoustics", [None, torch.linspace(-1, 1, 6, dtype=torch.float64)])
def test_doing_both_decoder_steps_at_once_changes_nothing(acoustics):
    model = decoder(3, units=9)
    memory = model.encode(features(3, 8, batch=2), torch.tensor([8, 5]))
    internal = AttentionInternalLM(model, acoustics)
    weights, options = FusionWeights(0.0, 0.4), AttentionOptions(beam=6, max_length=9)
    together = AttentionSearch(model, Fusion(None, internal, weights), options)(memory)
    apart = AttentionSearch(model, Fusion(None, Aloof(internal), weights), options)(memory)
    assert_same(together, apart)


@pytest.mark.parametrize("seed", range(3))
def test_an_internal_lm_of_fewer_bits_finds_nearly_the_same(seed):
    model = decoder(seed, units=9, dtype=torch.float32)
    memory = model.encode(features(seed, 8, batch=2, dtype=torch.float32), torch.tensor([8, 5]))
    weights, options = FusionWeights(0.0, 0.3), AttentionOptions(beam=12, max_length=9)  # wide: it is not the search
    exact = AttentionSearch(model, Fusion(None, AttentionInternalLM(model), weights), options)(memory)
    try:
        rounded = AttentionInternalLM(packed_copy(pack(model), "int8"))
    except IlmeError as error:
        pytest.skip(str(error))
    found = AttentionSearch(model, Fusion(None, rounded, weights), options)(memory)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours[0].score == pytest.approx(theirs[0].score, abs=0.005)


def repeats_too_often(labels, most, span):
    """Whether any run of at most `span` labels stands more than `most` times in a row; by definition."""
    for width in range(1, span + 1):
        for start in range(len(labels) - width * (most + 1) + 1):
            run = labels[start : start + width]
            if labels[start : start + width * (most + 1)] == run * (most + 1):
                return True
    return False


@pytest.mark.parametrize("most, span", [(1, 1), (1, 2), (2, 2), (2, 1)])
@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_the_repetition_guard_forbids_exactly_what_repeats(seed, most, span):
    model = decoder(seed, units=3)
    memory = model.encode(features(seed, 4), torch.tensor([4]))
    options = AttentionOptions(beam=300, max_length=6, max_repeats=most, repeat_span=span, stop_margin=float("inf"))
    (found,) = AttentionSearch(model, None, options)(memory)
    expected = [item for item in oracle.attention_best(model, memory, 6) if not repeats_too_often(item[1], most, span)]
    assert {h.tokens for h in found} == {labels for _, labels, _ in expected}
    assert found[0].score == pytest.approx(expected[0][0], abs=1e-9)


@pytest.mark.parametrize("most, span", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_labels_that_are_passed_over_neither_count_nor_break_a_run(seed, most, span):
    model = decoder(seed, units=3)
    memory = model.encode(features(seed, 4), torch.tensor([4]))
    every = oracle.attention_best(model, memory, 6)
    mark = max(label for _, labels, _ in every for label in labels)
    options = AttentionOptions(
        beam=300, max_length=6, max_repeats=most, repeat_span=span, repeat_ignores=[mark], stop_margin=float("inf")
    )
    (found,) = AttentionSearch(model, None, options)(memory)
    spoken = [tuple(label for label in labels if label != mark) for _, labels, _ in every]
    plain = {labels for _, labels, _ in every if not repeats_too_often(labels, most, span)}
    expected = {e[1] for e, words in zip(every, spoken, strict=True) if not repeats_too_often(words, most, span)}
    assert {h.tokens for h in found} == plain & expected
    assert plain & expected < plain


def test_what_the_guard_cannot_pass_over_is_named():
    with pytest.raises(BadInputError, match="max_repeats"):
        AttentionOptions(repeat_ignores=(2,))
    with pytest.raises(BadInputError, match="id 99"):
        AttentionSearch(decoder(0), None, AttentionOptions(max_repeats=1, repeat_ignores=(99,)))


@pytest.mark.parametrize("subtracted", [0.0, 0.4])
@pytest.mark.parametrize("back", [1, 2])
@torch.no_grad()
def test_a_search_that_may_not_look_back_scores_as_such_a_model_does(back, subtracted):
    changed = 0
    for seed in range(4):
        model = decoder(seed)
        for layer, factor in ((model.attend.energy, 100), (model.attend.query, 30), (model.attend.key, 6)):
            layer.weight.mul_(factor)  # it looks at single frames, and back and forth
        internal, weights = AttentionInternalLM(model), FusionWeights(subtracted=subtracted)
        memory = model.encode(features(seed, 9, batch=3), torch.tensor([9, 7, 9]))
        options = AttentionOptions(beam=300, max_length=3, look_back=back, stop_margin=float("inf"))
        found = AttentionSearch(model, Fusion(None, internal, weights), options)(memory)
        for b, nbest in enumerate(found):
            own = tuple(x[b : b + 1] for x in memory)
            limited = model.looking_back(own, back)
            expected, free = (
                {y: score for score, y, _ in oracle.attention_best(model, m, 3, subtracted=internal, weights=weights)}
                for m in (limited, own)
            )
            assert {h.tokens: h.score for h in nbest} == pytest.approx(expected, abs=1e-9)
            changed += expected != pytest.approx(free, abs=1e-3)
    assert changed >= 3


def test_looking_back_cannot_be_limited_everywhere():
    class Other:
        tokens = numbered_tokens(3, "attention")

    with pytest.raises(BadInputError, match="look_back"):
        AttentionSearch(Other(), None, AttentionOptions(look_back=3))
    with pytest.raises(BadInputError, match="look_back must be a whole number"):
        AttentionOptions(look_back=-1)


@pytest.mark.parametrize("margin", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_the_end_margin_allows_the_end_only_where_the_model_nearly_agrees(seed, margin):
    model = decoder(seed, units=4)
    memory = model.encode(features(seed, 5), torch.tensor([5]))
    options = AttentionOptions(beam=100, max_length=3, end_margin=margin, stop_margin=float("inf"))
    (found,) = AttentionSearch(model, None, options)(memory)

    def may_end(labels):
        rows, state = model.start(memory)
        for label in labels:
            rows, state = model.step(torch.tensor([label]), state, memory)
        return len(labels) == 3 or rows[0, 0] >= rows[0, 1:].max() - margin

    expected = {labels for _, labels, _ in oracle.attention_best(model, memory, 3) if may_end(labels)}
    assert {h.tokens for h in found} == expected


def test_limits_cap_each_utterance():
    model = decoder(2, units=6)
    memory = model.encode(features(2, 6, batch=3), torch.tensor([6, 6, 6]))
    found = AttentionSearch(model, None, AttentionOptions(beam=4, max_length=9))(memory, torch.tensor([2, 0, 5]))
    assert [max(len(h.tokens) for h in nbest) for nbest in found] <= [2, 0, 5]
    assert [h.tokens for h in found[1]] == [()]


@pytest.mark.slow
def test_wider_beams_are_not_worse_on_average():
    best = {}
    for beam in (1, 2, 4, 8, 25):
        scores = []
        for seed in range(30):
            model = decoder(seed, units=12, dtype=torch.float32)
            search = everything(model, seed, 12, torch.float32, beam=beam, max_length=8, stop_margin=float("inf"))
            memory = model.encode(features(seed, 6, dtype=torch.float32), torch.tensor([6]))
            scores.append(search(memory)[0][0].score)
        best[beam] = sum(scores) / len(scores)
    assert list(best.values()) == sorted(best.values()), best


def test_bad_options_are_named():
    with pytest.raises(BadInputError, match="beam must be a whole number of at least 1, got 0"):
        AttentionOptions(beam=0)
    with pytest.raises(BadInputError, match="end_margin must not be negative"):
        AttentionOptions(end_margin=-1.0)
    with pytest.raises(BadInputError, match="stop_margin must not be negative, got nan"):
        AttentionOptions(stop_margin=float("nan"))


@pytest.mark.parametrize("size", [40, 9999, 40_000])
def test_the_largest_of_long_rows_are_those_of_topk(size):
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(3, size, generator=generator)
    rows[1, : size // 2] = -torch.inf
    rows[2] = -torch.inf
    rows[2, [0, size - 1]] = torch.tensor([1.0, 2.0])
    for count in (1, 16):
        best, at = _largest(rows, count)
        torch.testing.assert_close(best, rows.topk(count, dim=1).values, rtol=0, atol=0)
        torch.testing.assert_close(rows.gather(1, at), best, rtol=0, atol=0)
