"""The share of the background, chosen with the weights: a search that loops where what is subtracted has no bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.tuning.proposals import TriedPoint
from ilme.tuning.shares import SharePoint, Views
from ilme.tuning.tuner import TuningOptions, tune
from ilme.tuning.weight_search import WeightSpace
from tests.tuning.synthetic_lists import TRUTH, SyntheticDecoder
from tests.tuning.test_weight_search import forty_words

SHARES = (0.0, 0.3)
OPTIONS = TuningOptions(beam=6, replicates=0, restarts=1, grid=3, max_decodes=4, background=SHARES)


class LoopingDecoder(SyntheticDecoder):
    """As its parent, with a loop in every third utterance that an unsmoothed internal LM finds all but impossible."""

    LOOP = (999,)

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, utterances=60, hypotheses=20, noise=2.0)
        for i in list(self.everything)[::3]:
            scores = Scores(asr=-45.0, lm=-30.0, subtracted=-400.0, length=30.0)
            self.everything[i].append(Hypothesis(self.LOOP, 0.0, scores, text=" ".join(["oops"] * 30)))

    def rescored(self, lists: Mapping[str, NBest]) -> dict[float, dict[str, NBest]]:
        return {share: {i: [self.smoothed(h, share) for h in n] for i, n in lists.items()} for share in SHARES}

    def smoothed(self, h: Hypothesis, share: float) -> Hypothesis:
        loop = -400.0 if share == 0 else -60.0
        return replace(h, scores=replace(h.scores, subtracted=loop)) if h.tokens == self.LOOP else h

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        self.calls.append(weights)
        rows = {i: [self.smoothed(h, weights.background) for h in n] for i, n in self.everything.items()}
        return {i: sorted(n, key=lambda h: -h.scores.fused(weights))[:beam] for i, n in rows.items()}


@pytest.mark.parametrize("seed", range(2))
def test_a_bounded_reward_is_chosen_where_an_unbounded_one_loops(seed: int) -> None:
    decoder = LoopingDecoder(seed)
    result = tune(decoder, decoder.references, options=OPTIONS, rescore=decoder.rescored)
    without = tune(decoder, decoder.references, options=replace(OPTIONS, background=(0.0,)))
    assert result.weights.background == 0.3
    assert result.weights.lm == pytest.approx(TRUTH.lm, abs=0.15)
    assert result.weights.subtracted == pytest.approx(TRUTH.subtracted, abs=0.15)
    assert result.dev.errors < without.dev.errors and without.weights.background == 0
    assert without.weights.subtracted < result.weights.subtracted, "only little can be subtracted without a bound"
    assert result.decodes <= OPTIONS.max_decodes and without.decodes <= OPTIONS.max_decodes, "the same effort"


def test_where_nothing_loops_the_lists_are_those_of_any_share_and_one_share_fixes_it() -> None:
    decoder = SyntheticDecoder(1, utterances=40, hypotheses=20, noise=2.0)

    def same(lists: Mapping[str, NBest]) -> dict[float, dict[str, NBest]]:
        return {share: dict(lists) for share in SHARES}

    result = tune(decoder, decoder.references, options=OPTIONS, rescore=same)
    assert result.weights.background == 0.3, "ties go to the larger"
    assert result.baseline is not None and result.steps[0].weights == FusionWeights(), "no share without subtraction"
    plain = tune(decoder, decoder.references, options=replace(OPTIONS, background=(0.0,)))
    assert (result.weights.lm, result.weights.subtracted) == (plain.weights.lm, plain.weights.subtracted)
    fixed = tune(decoder, decoder.references, options=replace(OPTIONS, background=(0.3,)), rescore=same)
    assert fixed.weights == result.weights


@pytest.mark.parametrize("method", ["BS", "SF"])
def test_a_method_that_subtracts_nothing_has_no_share(method: str) -> None:
    decoder = SyntheticDecoder(2, utterances=20)
    result = tune(decoder, decoder.references, options=replace(OPTIONS, method=method))  # type: ignore[arg-type]
    assert result.weights.background == 0 == result.weights.subtracted


def test_bad_shares_are_named() -> None:
    for bad in ((), (1.0,), (-0.1, 0.2)):
        with pytest.raises(BadInputError, match="background lists shares"):
            TuningOptions(background=bad)
    decoder = SyntheticDecoder(3, utterances=4)
    with pytest.raises(BadInputError, match="takes a `rescore`"):
        tune(decoder, decoder.references, options=OPTIONS)


def test_a_decode_with_one_share_may_be_repeated_with_another() -> None:
    lists = forty_words()
    point = TriedPoint(np.array([0.3, 0.2, 0.0]), 4.0, lists)
    tried = SharePoint(0.0, point, dict.fromkeys(SHARES, lists))
    assert tried.seen(0.0, True).confirmed and not tried.seen(0.3, True).confirmed
    assert tried.seen(0.3, False).confirmed, "where other weights are left, these are not tried again"
    none = SharePoint(0.0, replace(point, vector=np.array([0.3, 0.0, 0.0])), dict.fromkeys(SHARES, lists))
    assert none.seen(0.3, True).confirmed, "nothing is subtracted: the same decode"
    assert Views((0.0,), None, lambda found: lists)({}) == {0.0: lists}


def test_with_fixed_weights_every_share_is_decoded() -> None:
    decoder = LoopingDecoder()
    fixed = WeightSpace(lm=(0.4, 0.4), subtracted=(0.25, 0.25))
    result = tune(decoder, decoder.references, options=replace(OPTIONS, space=fixed), rescore=decoder.rescored)
    assert [w.background for w in decoder.calls] == [0.0, 0.3]
    assert result.weights == FusionWeights(0.4, 0.25, 0.0, 0.3)
