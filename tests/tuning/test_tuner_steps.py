"""How the tuner weighs its decodes, in numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts
from ilme.evaluation.tuning_result import TuningStep
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning import tuner
from ilme.tuning.error_surface import CandidateLists
from ilme.tuning.option_search import OptionSpace
from ilme.tuning.proposals import Proposer
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import Optimum, Prior
from tests.tuning.test_weight_search import forty_words


def step(lm: float, errors: int, *, length: float = 0.0, beam: int = 3, listed: float = 0.0) -> TuningStep:
    counts = ErrorCounts(hits=40 - errors, substitutions=errors)
    return TuningStep(FusionWeights(lm=lm, length=length), beam, counts, listed, 0)


def test_the_cost_is_what_the_search_measured_and_the_penalty() -> None:
    """40 words: 2 points of WER are 0.8 errors for each unit of weight; what the lists promise does not count."""
    options = TuningOptions(beam=3, penalty=2.0)
    assert tuner._cost(step(0.5, 4, listed=99.0), options) == pytest.approx(4 + 0.5 * 0.8)
    assert tuner._cost(step(0.5, 4, length=-0.75), options) == pytest.approx(4 + 1.25 * 0.8)
    assert tuner._cost(step(0.5, 4), TuningOptions(beam=3)) == 4


def test_only_decodes_with_the_beam_that_is_asked_for_are_compared() -> None:
    wide, worse, small, large = step(0.0, 1, beam=9), step(0.3, 6), step(0.4, 5), step(0.5, 5)
    options = TuningOptions(beam=3)
    assert tuner._best([wide, worse, large, small], options) is small, "fewest errors, then smallest weights"
    assert tuner._best([wide], options) is wide, "nothing else was measured"
    penalised = TuningOptions(beam=3, penalty=50.0)
    assert tuner._best([step(0.0, 6), large], penalised).weights.lm == 0.0, "one error is not worth 0.5 · 20"


def test_the_lists_promise_no_gain_unless_they_have_fewer_errors_than_a_decode() -> None:
    at = np.array([0.5, 0.0, 0.0])  # the lists have one error there
    plain = TuningOptions(beam=3)
    assert tuner._no_gain([step(0.0, 3), step(0.4, 1)], forty_words(), at, plain)
    assert not tuner._no_gain([step(0.0, 3), step(0.4, 2)], forty_words(), at, plain)
    expected = TuningOptions(beam=3, prior=Prior(lm=0.4, errors=100.0))
    assert tuner._no_gain([step(0.0, 3), step(0.4, 2)], forty_words(), at, expected), "0.1 away costs 16 errors"


@pytest.mark.parametrize(
    ("name", "least"),
    [("beam", 0), ("first_beam", 0), ("max_decodes", 1), ("restarts", 0), ("replicates", 0), ("grid", 2)],
)
def test_the_least_of_every_option(name: str, least: int) -> None:
    assert getattr(TuningOptions(**{name: least}), name) == least  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=rf"{name}.*{least - 1}|at least {least}"):
        TuningOptions(**{name: least - 1})  # type: ignore[arg-type]


def test_options_of_the_search_at_their_edges() -> None:
    space = OptionSpace(length_normalisation=(0.0, 1.0), end_margin=(0.0, 2.0), certain_end=(1.0,), decodes=4)
    assert space and space.example == {"length_normalisation": 0.0, "end_margin": 0.0, "certain_end": 1.0}
    assert not OptionSpace() and OptionSpace(certain_end=(1.0,)) and OptionSpace(length_normalisation=(1.0,))
    with pytest.raises(BadInputError, match="decodes=3 is too few: the listed options take at least 4"):
        replace(space, decodes=3)
    for name in ("length_normalisation", "end_margin", "certain_end"):
        for wrong in ((1.0, -0.1), (float("inf"),), (float("nan"), 1.0)):
            with pytest.raises(BadInputError, match=f"{name} must list finite numbers of at least 0"):
                OptionSpace(**{name: wrong})  # type: ignore[arg-type]


def test_hypotheses_of_a_decode_that_overreached_stay_out_of_every_later_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists that proposals are made from, step by step: the second decode is far worse, the third is not."""
    words = " ".join(f"w{k}" for k in range(10))
    references = {f"u{u}": words for u in range(8)}

    class Decoder:
        calls = 0

        def decode(self, weights: FusionWeights, beam: int) -> dict[str, list[Hypothesis]]:
            text = (words[:-3], "cut", words[:-3] + " w")[self.calls]
            scores = Scores(-1.0 * self.calls, 4.0 * self.calls, 0.0, 9)  # each wins for some weights
            found = Hypothesis((self.calls,), scores.asr, scores, text=text)
            self.calls += 1
            return {i: [found] for i in references}

    seen: list[int] = []
    points = iter(np.array([[0.2, 0.0, 0.0], [0.1, 0.0, 0.0], [0.3, 0.0, 0.0]]))

    def following(self: Proposer, lists: CandidateLists, tried: object) -> Optimum:
        seen.append(lists.base.shape[1])  # hypotheses of each utterance
        return Optimum(next(points), 0.0)

    monkeypatch.setattr(Proposer, "propose", following)
    options = TuningOptions(beam=1, max_decodes=3, replicates=0)
    result = tuner.tune(Decoder(), references, options=options)
    assert [s.overreached for s in result.steps] == [False, True, False]
    assert seen == [1, 1, 2], "the first; the first again; the first and the third"
