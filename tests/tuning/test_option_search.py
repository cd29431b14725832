"""Search options beside the weights: α and the end margin on made-up hypotheses whose best options are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import SearchDecoder
from ilme.search.attention import AttentionOptions
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.tuning import tuner
from ilme.tuning.option_search import EXPONENT, OptionSpace
from ilme.tuning.tuner import TuningOptions, tune
from tests.recogniser.job import WEIGHTS, make_recogniser, make_utterances
from tests.recogniser.test_decoder import SMALL, same
from tests.tuning.synthetic_lists import TRUTH, WORDS, SyntheticDecoder

ALPHA = 0.6
OPTIONS = TuningOptions(beam=10, replicates=0, restarts=3, grid=3, smoothing=0.0)


class OptionDecoder:
    """log P_E2E = quality · (|y| + 1)^0.6 − 0.4 lm + 0.25 subtracted, lengths from half to twice the transcript's.

    So the transcript, whose quality is best, wins with the true weights and α = 0.6. Half of the utterances have
    another hypothesis that breaks off early and scores best of all; its end stands 5 nats below the best label, that of
    every transcript 1 nat, so that an end margin between 1 and 5 is right.
    """

    def __init__(self, seed: int = 0, utterances: int = 80, broken: bool = False, noise: float = 0.05) -> None:
        g = np.random.default_rng(seed)
        self.references = {f"u{u}": " ".join(WORDS) for u in range(utterances)}
        self.search: dict[str, float] = {}
        self.calls: list[tuple[FusionWeights, dict[str, float]]] = []
        self.everything: dict[str, list[tuple[Hypothesis, float]]] = {}
        for u, i in enumerate(self.references):
            rows = []
            for k in range(24):
                words = WORDS if k == 0 else ["oops"] * int(g.integers(4, 17))
                quality = (-4.0 if k == 0 else -4.6 - g.exponential(0.6)) + g.normal(0, noise)
                rows.append((self.hypothesis(k, words, quality, g), 1.0))
            if broken and u % 2:
                rows.append((self.hypothesis(24, WORDS[:3], -0.5, g), 5.0))
            self.everything[i] = rows

    def hypothesis(self, k: int, words: list[str], quality: float, g: np.random.Generator) -> Hypothesis:
        lm, sub = (-2.5 * len(words) + g.normal(0, 3) for _ in range(2))
        asr = quality * (len(words) + 1) ** ALPHA - TRUTH.lm * lm + TRUTH.subtracted * sub
        return Hypothesis((k,), asr, Scores(asr, lm, sub, len(words)), text=" ".join(words))

    def adjusted(self, search: Mapping[str, float]) -> OptionDecoder:
        other = object.__new__(OptionDecoder)
        other.__dict__ = {**self.__dict__, "search": dict(search)}
        return other

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        self.calls.append((weights, self.search))
        alpha, margin = self.search.get(EXPONENT, 0.0), self.search.get("end_margin", math.inf)

        def rank(h: Hypothesis) -> float:
            return h.scores.fused(weights) / (h.scores.length + 1) ** alpha

        return {
            i: sorted((h for h, end in rows if end <= margin), key=rank, reverse=True)[:beam]
            for i, rows in self.everything.items()
        }


def test_off_by_default() -> None:
    decoder = OptionDecoder()
    result = tune(decoder, decoder.references, options=OPTIONS)
    assert result.search == {} and result.length_exponent == 0 and result.decodes <= 5
    assert all(search == {} for _, search in decoder.calls)


def test_every_search_for_weights_has_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], tuner.search_weights

    def search_weights(*lists: Any, **told: Any) -> Any:
        asked.append(told.get("objective"))
        return real(*lists, **told)

    monkeypatch.setattr(tuner, "search_weights", search_weights)
    decoder = OptionDecoder(utterances=8)
    space = OptionSpace(length_normalisation=(0.3, 0.6), decodes=1)
    options = replace(OPTIONS, penalty=0.7, smoothing=0.05, max_decodes=2, search=space)
    tune(decoder, decoder.references, options=options)
    assert len(asked) > 2 and all(objective == options.objective for objective in asked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_finds_the_known_exponent_on_the_lists(seed: int) -> None:
    decoder = OptionDecoder(seed)
    plain = tune(decoder, decoder.references, options=OPTIONS)
    decoder.calls.clear()
    space = OptionSpace(length_normalisation=(0.3, 0.6, 1.0), decodes=2)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, search=space))
    assert result.search == {EXPONENT: 0.6} and result.length_exponent == 0.6
    assert result.dev.errors < plain.dev.errors
    assert len(decoder.calls) == result.decodes <= plain.decodes + 2  # four values, at most two decodes
    measured = decoder.adjusted(result.search).decode(result.weights, 10)
    wrong = sum(nbest[0].tokens != (0,) for nbest in measured.values())
    assert (wrong == 0) == (result.dev.errors == 0)
    assert wrong <= 0.05 * len(measured)


@pytest.mark.slow
def test_finds_the_known_end_margin_by_decoding() -> None:
    decoder = OptionDecoder(broken=True)
    space = OptionSpace(length_normalisation=(0.6,), end_margin=(4.0, 2.0, 3.0), decodes=5)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, search=space))
    plain = tune(decoder, decoder.references, options=OPTIONS)
    assert result.search["end_margin"] == 2.0  # 2, 3 and 4 are equally good: the smallest
    assert result.dev.errors < plain.dev.errors
    assert result.decodes <= plain.decodes + 5
    margins = [s.search["end_margin"] for s in result.steps if "end_margin" in s.search]
    assert margins == [2.0, 3.0, 4.0]


@pytest.mark.slow
def test_an_option_that_changes_nothing_is_left_alone() -> None:
    decoder = OptionDecoder()  # nothing breaks off: every margin from 1 nat on gives the same hypotheses
    options = replace(OPTIONS, search=OptionSpace(end_margin=(2.0, 9.0)))
    result = tune(decoder, decoder.references, options=options)
    assert result.search == {} and result.dev == tune(decoder, decoder.references, options=OPTIONS).dev


@pytest.mark.slow
def test_equal_exponents_tie_toward_the_smaller() -> None:
    decoder = OptionDecoder()
    for i, rows in decoder.everything.items():  # all of one length: no exponent changes an order
        decoder.everything[i] = [(replace(h, scores=replace(h.scores, length=8.0)), end) for h, end in rows]
    options = replace(OPTIONS, length_exponent=0.5, search=OptionSpace(length_normalisation=(1.0, 0.2)))
    result = tune(decoder, decoder.references, options=options)
    assert result.length_exponent == 0.2 and result.search == {EXPONENT: 0.2}


@pytest.mark.slow
def test_is_decided_by_the_seed_and_survives_its_file(tmp_path: Path) -> None:
    options = replace(OPTIONS, search=OptionSpace(length_normalisation=(0.6, 1.0), end_margin=(2.0,)))
    found = []
    for _ in range(2):
        decoder = OptionDecoder(broken=True)
        found.append(replace(tune(decoder, decoder.references, options=options), seconds=0.0))
    assert found[0] == found[1] and found[0].search
    found[0].save(tmp_path / "tuning.json")
    assert TuningResult.load(tmp_path / "tuning.json") == found[0]


@pytest.mark.slow
def test_never_worse_than_no_fusion() -> None:
    for seed in range(3):
        decoder = OptionDecoder(seed, utterances=20, broken=True, noise=0.8)
        options = replace(OPTIONS, search=OptionSpace(length_normalisation=(0.5, 1.5), end_margin=(0.5, 2.0)))
        decoder.everything = {
            i: [(h, 0.1 if h.tokens != (0,) else end) for h, end in rows] for i, rows in decoder.everything.items()
        }
        result = tune(decoder, decoder.references, options=options)
        assert result.baseline is not None and result.dev.errors <= result.baseline.errors


def test_bad_options_are_named() -> None:
    with pytest.raises(BadInputError, match="end_margin must list finite numbers"):
        OptionSpace(end_margin=(math.inf,))
    with pytest.raises(BadInputError, match="length_normalisation must list"):
        OptionSpace(length_normalisation=(-0.1,))
    with pytest.raises(BadInputError, match="decodes=2 is too few: the listed options take at least 3"):
        OptionSpace(length_normalisation=(1.0,), end_margin=(1.0, 2.0), decodes=2)
    fixed = SyntheticDecoder(utterances=5)
    with pytest.raises(BadInputError, match="SyntheticDecoder has no `adjusted`"):
        tune(fixed, fixed.references, options=replace(OPTIONS, search=OptionSpace(end_margin=(1.0,))))


def test_the_real_decoder_changes_its_search_and_shares_its_encoder(tmp_path: Path) -> None:
    recogniser = make_recogniser("aed")
    utterances = make_utterances(4)
    decoder = SearchDecoder(recogniser, utterances, options=SMALL, folder=tmp_path)
    before = decoder.decode(WEIGHTS, 3)
    changed = decoder.adjusted({EXPONENT: 1.0, "end_margin": 0.5})
    assert changed._encoded is decoder._encoded and decoder.adjusted({}) is decoder
    other = make_recogniser("aed")
    assert isinstance(other.options, AttentionOptions)
    other.options = replace(other.options, length_normalisation=1.0, end_margin=0.5)
    assert same(changed.decode(WEIGHTS, 3), SearchDecoder(other, utterances, options=SMALL).decode(WEIGHTS, 3))
    assert len(list(tmp_path.iterdir())) == 2  # each in a folder of its own
    assert same(decoder.decode(WEIGHTS, 3), before)
    with pytest.raises(BadInputError, match="TransducerOptions has no end_margin"):
        SearchDecoder(make_recogniser(), utterances, options=SMALL).adjusted({"end_margin": 1.0})
