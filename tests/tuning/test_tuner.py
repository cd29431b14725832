"""The tuner on synthetic lists whose optimum is known, and against a full grid of decodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.evaluation.metrics import measure
from ilme.evaluation.tuning_result import Method, TuningResult
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.tuning.error_surface import as_vector, build_lists
from ilme.tuning.tuner import TuningOptions, merge_lists, tune
from ilme.tuning.weight_search import WeightObjective, WeightSpace, search_weights
from tests.tuning.synthetic_lists import TRUTH, WORDS, OverreachingDecoder, SyntheticDecoder


def wer(decoder: SyntheticDecoder, weights: FusionWeights) -> float:
    texts = {i: max(rows, key=lambda h: h.scores.fused(weights)).text for i, rows in decoder.everything.items()}
    return measure(decoder.references, texts).rate


OPTIONS = TuningOptions(beam=8, replicates=0, restarts=4, grid=5)


def test_finds_the_known_optimum_in_at_most_five_decodes() -> None:
    decoder = SyntheticDecoder(utterances=200, noise=2.0)
    result = tune(decoder, decoder.references, options=OPTIONS, speakers=decoder.speakers)
    assert result.decodes == len(decoder.calls) <= 5
    assert result.dev.rate <= wer(decoder, TRUTH) + 0.2
    assert result.weights.lm == pytest.approx(TRUTH.lm, abs=0.12)
    assert result.weights.subtracted == pytest.approx(TRUTH.subtracted, abs=0.12)
    assert result.baseline is not None and result.baseline.rate == pytest.approx(wer(decoder, FusionWeights()))
    assert result.dev.rate < 0.8 * result.baseline.rate


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["SF", "ILME"])
def test_more_decodes_do_no_harm(seed: int, method: Method) -> None:
    """The window over which errors are averaged does not outgrow the region where many decodes are allowed."""
    decoder = SyntheticDecoder(seed, utterances=120, noise=2.0)
    options = replace(OPTIONS, method=method, space=WeightSpace(lm=(0.0, 2.0), subtracted=(0.0, 2.0)))
    few = tune(decoder, decoder.references, options=options)
    many = tune(decoder, decoder.references, options=replace(options, max_decodes=14))
    assert many.steps[1].weights.lm > 0.2 and many.dev.errors <= few.dev.errors


@pytest.mark.slow
def test_says_where_it_had_too_little_room() -> None:
    decoder = SyntheticDecoder(utterances=200, noise=2.0)
    space = WeightSpace(lm=(0.0, 0.3), length=(0.0, 0.0))
    result = tune(decoder, decoder.references, options=replace(OPTIONS, space=space))
    assert TRUTH.lm > 0.35 and result.at_bound == ("lm",)
    assert result.hints == ["λ_T is at the end of its range: give it more room"]
    wide = tune(decoder, decoder.references, options=OPTIONS)
    assert wide.at_bound == () and wide.hints == []


def test_says_where_it_had_too_few_decodes() -> None:
    decoder = SyntheticDecoder(utterances=200, noise=2.0)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, max_decodes=2))
    assert result.gaining and result.hints == ["the last of 2 decodes still gained: allow more"]
    assert TuningResult.from_json(json.loads(json.dumps(result.to_json()))).hints == result.hints


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_is_at_least_as_good_as_a_full_grid_of_decodes(seed: int) -> None:
    decoder = SyntheticDecoder(seed, noise=2.0)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, smoothing=0.0))
    grid = min(
        wer(decoder, FusionWeights(lm=x, subtracted=y)) for x in np.linspace(0, 1, 12) for y in np.linspace(0, 1, 8)
    )
    assert result.dev.rate <= grid
    assert result.decodes <= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_first_step_too_far_does_not_spoil_the_rest(seed: int) -> None:
    decoder = OverreachingDecoder(seed)
    options = replace(OPTIONS, method="SF", beam=3, max_decodes=6, replicates=5)
    result = tune(decoder, decoder.references, options=options)
    lm = [s.weights.lm for s in result.steps]
    assert lm[1] == pytest.approx(0.4, abs=0.1) and result.decodes <= 6
    assert result.weights.lm == pytest.approx(decoder.BEST, abs=0.04)
    without, least = decoder.errors(0.0), min(decoder.errors(x) for x in np.arange(0, 0.4, 0.01))
    assert without - result.dev.errors >= 0.8 * (without - least)
    assert result.steps[1].overreached and not result.steps[0].overreached
    assert result.stability is not None and result.stability.high.lm < lm[1]
    assert TuningResult.from_json(json.loads(json.dumps(result.to_json()))).steps == result.steps


def test_the_reported_wer_is_the_searchs_own() -> None:
    decoder = SyntheticDecoder(noise=2.0)
    result = tune(decoder, decoder.references, options=OPTIONS)
    assert result.dev.rate == pytest.approx(wer(decoder, result.weights))
    assert result.weights in decoder.calls


def test_a_method_without_a_weight_leaves_it_at_zero() -> None:
    decoder = SyntheticDecoder()
    shallow = tune(decoder, decoder.references, options=replace(OPTIONS, method="SF"))
    assert shallow.weights.subtracted == 0 and shallow.weights.lm > 0
    assert all(w.subtracted == 0 for w in decoder.calls)
    assert len(shallow.heat_map.subtracted) == 1
    none = tune(decoder, decoder.references, options=replace(OPTIONS, method="BS"))
    assert none.weights == FusionWeights() and none.decodes == 1 and none.stability is None


def test_without_gain_the_weights_are_zero() -> None:
    decoder = SyntheticDecoder(noise=0.0)
    for rows in decoder.everything.values():  # the acoustic score alone is perfect, the LM is noise
        rows[:] = [replace(h, scores=replace(h.scores, asr=-100.0 * (h.text != " ".join(WORDS)))) for h in rows]
    result = tune(decoder, decoder.references, options=OPTIONS)
    assert result.weights == FusionWeights() and result.dev.errors == 0


def test_ties_break_toward_smaller_weights() -> None:
    def h(k: int, text: str, asr: float, lm: float) -> Hypothesis:
        return Hypothesis((k,), asr, Scores(asr, lm, 0.0, 1), text=text)

    # right wins for every λ_T above 0.3 and the error is 0 from there to the end
    lists = build_lists({"u": [h(0, "wrong", -1.0, -20.0), h(1, "right", -4.0, -10.0)]}, {"u": "right"})
    found = search_weights(lists, WeightSpace(), restarts=20)
    assert found.objective == 0
    assert found.vector[0] == pytest.approx(0.3, abs=0.02) and found.vector[0] > 0.3
    assert found.vector[1] == 0
    # the same at any λ_T: then none at all
    lists = build_lists({"u": [h(0, "wrong", -9.0, -20.0), h(1, "right", -4.0, -10.0)]}, {"u": "right"})
    assert search_weights(lists, WeightSpace(), restarts=20).vector.tolist() == [0, 0, 0]


def test_the_penalty_trades_errors_for_smaller_weights() -> None:
    decoder = SyntheticDecoder(noise=2.0)
    free = tune(decoder, decoder.references, options=replace(OPTIONS, smoothing=0.0))
    held = tune(decoder, decoder.references, options=replace(OPTIONS, smoothing=0.0, penalty=20.0))
    assert as_vector(held.weights).sum() < as_vector(free.weights).sum()


def test_smoothing_skips_a_narrow_pit() -> None:
    def row(k: int, errors: int, asr: float, lm: float) -> Hypothesis:
        return Hypothesis((k,), asr, Scores(asr, lm, 0.0, 1), text=" ".join(["x"] * errors + ["r"] * (4 - errors)))

    # u: 0 errors only for 0.50 < λ_T < 0.51; v: 1 error for every λ_T > 0.7
    lists = build_lists(
        {
            "u": [row(0, 2, 0.0, -2.0), row(1, 0, -0.5, -1.0), row(2, 2, -1.01, 0.0)],
            "v": [row(0, 2, 0.0, -1.0), row(1, 1, -0.7, 0.0)],
        },
        {"u": "r r r r", "v": "r r r r"},
    )
    space = WeightSpace(subtracted=(0.0, 0.0))
    assert 0.5 < search_weights(lists, space, restarts=20).vector[0] < 0.51
    assert search_weights(lists, space, objective=WeightObjective(smoothing=0.1), restarts=20).vector[0] > 0.7


def test_the_seed_decides_everything() -> None:
    results = []
    for _ in range(2):
        decoder = SyntheticDecoder(noise=2.0)
        result = tune(
            decoder,
            decoder.references,
            options=replace(OPTIONS, seed=7, replicates=3),
            speakers=decoder.speakers,
        )
        results.append(replace(result, seconds=0.0))
    assert results[0] == results[1]


@pytest.mark.slow
def test_stability_narrows_with_more_speakers() -> None:
    few, many = SyntheticDecoder(utterances=24, noise=2.0), SyntheticDecoder(utterances=200, noise=2.0)
    spread = []
    for decoder in (few, many):
        result = tune(decoder, decoder.references, options=replace(OPTIONS, replicates=10), speakers=decoder.speakers)
        assert result.stability is not None
        assert result.stability.groups == len(set(decoder.speakers.values()))
        assert result.stability.low.lm <= result.stability.mean.lm <= result.stability.high.lm
        spread.append(result.stability.deviation.lm)
        assert result.stability.optimism > 0
    assert spread[1] < spread[0]


def test_heat_map_and_balance_are_the_lists_errors() -> None:
    decoder = SyntheticDecoder(noise=2.0)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, beam=40, space=WeightSpace(lm=(0, 0.8))))
    heat = result.heat_map
    assert heat.lm == (0.0, 0.2, 0.4, 0.6, 0.8) and heat.subtracted == (0.0, 0.25, 0.5, 0.75, 1.0)
    for row, mu in zip(heat.wer, heat.subtracted, strict=True):
        for value, lm in zip(row, heat.lm, strict=True):
            assert value == pytest.approx(wer(decoder, FusionWeights(lm=lm, subtracted=mu)), abs=1e-3)
    assert result.balance.lm[0] == 0 and result.balance.lm[-1] == pytest.approx(0.8)
    total = result.balance.substitutions[0] + result.balance.deletions[0] + result.balance.insertions[0]
    assert total == pytest.approx(wer(decoder, FusionWeights()), abs=1e-3)


def test_merging_keeps_the_better_acoustic_score() -> None:
    def h(tokens: tuple[int, ...], asr: float) -> Hypothesis:
        return Hypothesis(tokens, asr, Scores(asr), text="x")

    lists: dict[str, NBest] = {"u": [h((1,), -5.0), h((2,), -6.0)]}
    assert merge_lists(lists, {"u": [h((1,), -4.0), h((3,), -1.0)], "v": [h((1,), -9.0)]}) == 2
    assert {x.tokens: x.scores.asr for x in lists["u"]} == {(1,): -4.0, (2,): -6.0, (3,): -1.0}
    assert len(lists["v"]) == 1


def test_result_survives_its_file(tmp_path: Path) -> None:
    decoder = SyntheticDecoder()
    options = replace(OPTIONS, replicates=3)
    result = tune(decoder, decoder.references, options=options, speakers=decoder.speakers)
    path = tmp_path / "deep" / "tuning.json"
    result.save(path)
    assert TuningResult.load(path) == result
    data = json.loads(path.read_text())
    assert data["dev_wer"] == pytest.approx(result.dev.rate, abs=1e-4)
    path.write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(BadInputError, match=r"version 1.*99"):
        TuningResult.load(path)
    path.write_text("{")
    with pytest.raises(BadInputError, match="not JSON"):
        TuningResult.load(path)
    path.write_text(json.dumps({"format": "ilme-tuning", "version": 1}))
    with pytest.raises(BadInputError, match="damaged"):
        TuningResult.load(path)
    with pytest.raises(BadInputError, match="no tuning result"):
        TuningResult.load(tmp_path / "absent.json")


def test_bad_input_is_named() -> None:
    decoder = SyntheticDecoder(utterances=3)
    with pytest.raises(BadInputError, match="no references"):
        tune(decoder, {}, options=OPTIONS)
    with pytest.raises(BadInputError, match=r"'other' has a reference but no hypothesis"):
        tune(decoder, {**decoder.references, "other": "x"}, options=OPTIONS)
    decoder.everything["u1"][0] = replace(decoder.everything["u1"][0], scores=Scores(float("nan")))
    with pytest.raises(BadInputError, match=r"'u1'.*finite"):
        tune(decoder, decoder.references, options=replace(OPTIONS, beam=100))
    for bad in ({"beam": -1}, {"max_decodes": 0}, {"grid": 1}, {"step": 0.0}):
        with pytest.raises(BadInputError, match=next(iter(bad))):
            TuningOptions(**bad)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="never negative"):
        WeightSpace(lm=(-0.1, 1.0))
    with pytest.raises(BadInputError, match="low ≤ high"):
        WeightSpace(lm=(0.5, 0.1))
    with pytest.raises(BadInputError, match="penalty"):
        WeightObjective(penalty=-1.0)
    with pytest.raises(BadInputError, match="no method"):
        WeightSpace().restricted("XX")  # type: ignore[arg-type]
