"""Intervals against scipy's bootstrap, the matched-pairs test against the textbook's worked example."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ilme.errors import BadInputError
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import bootstrap_interval, compare, mapsswe, paired_bootstrap, segment_errors

# Jurafsky & Martin, Speech and Language Processing, section 9.8, after Gillick & Cox (1989).
REFERENCE = "it was the best of times it was the worst of times it was"
SYSTEM_A = "its the best of times it is the worst of times or it was"
SYSTEM_B = "it was the best times it won the test of times it was"


def noisy(n: int, rate_a: float, rate_b: float, seed: int = 0, per_speaker: int = 1) -> tuple[Measurement, Measurement]:
    generator = np.random.default_rng(seed)
    references, a, b, speakers = {}, {}, {}, {}
    for i in range(n):
        words = [f"w{k}" for k in range(int(generator.integers(3, 20)))]
        references[str(i)] = " ".join(words)
        a[str(i)] = " ".join("x" if generator.random() < rate_a else w for w in words)
        b[str(i)] = " ".join("x" if generator.random() < rate_b else w for w in words)
        speakers[str(i)] = f"s{i // per_speaker}"
    return measure(references, a, speakers=speakers), measure(references, b, speakers=speakers)


def test_segments_of_the_worked_example() -> None:
    assert segment_errors(REFERENCE, SYSTEM_A, SYSTEM_B) == [(2, 0), (0, 1), (1, 2), (1, 0)]


def test_statistic_of_the_worked_example() -> None:
    references = {"u": REFERENCE}
    w, p = mapsswe(measure(references, {"u": SYSTEM_B}), measure(references, {"u": SYSTEM_A}))
    assert w == pytest.approx(0.25 / (1.5 / 2))  # mean 0.25, standard deviation 1.5, four segments
    assert p == pytest.approx(2 * stats.norm.sf(0.25 / 0.75))


def test_mapsswe_agrees_with_a_one_sample_test_over_the_segments() -> None:
    a, b = noisy(300, 0.1, 0.14)
    z = [
        eb - ea
        for u, v in zip(a.utterances, b.utterances, strict=True)
        for ea, eb in segment_errors(u.reference, u.hypothesis, v.hypothesis)
    ]
    w, p = mapsswe(a, b)
    assert w == pytest.approx(stats.ttest_1samp(z, 0).statistic)
    assert p == pytest.approx(2 * stats.norm.sf(abs(w)))
    assert mapsswe(b, a)[0] == pytest.approx(-w)


def test_interval_agrees_with_scipy_when_every_utterance_is_a_speaker() -> None:
    measured, _ = noisy(150, 0.2, 0.2)
    ours = bootstrap_interval(measured)
    errors = np.array([u.counts.errors for u in measured.utterances])
    words = np.array([u.counts.words for u in measured.utterances])
    theirs = stats.bootstrap(
        (errors, words),
        lambda e, w, axis=-1: 100 * e.sum(axis=axis) / w.sum(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert ours.groups == 150
    assert ours.low == pytest.approx(theirs.low, abs=0.15)
    assert ours.high == pytest.approx(theirs.high, abs=0.15)
    assert ours.low < measured.rate < ours.high


def test_few_speakers_make_the_interval_wider() -> None:
    generator = np.random.default_rng(3)
    references, hypotheses, speakers = {}, {}, {}
    for i in range(200):
        speaker = i // 40
        words = ["w"] * 10
        references[str(i)] = " ".join(words)
        hypotheses[str(i)] = " ".join("x" if generator.random() < 0.05 * (speaker + 1) else w for w in words)
        speakers[str(i)] = f"s{speaker}"
    grouped = bootstrap_interval(measure(references, hypotheses, speakers=speakers))
    single = bootstrap_interval(measure(references, hypotheses))
    assert grouped.groups == 5
    assert grouped.high - grouped.low > 2 * (single.high - single.low)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(100):
        measured, _ = noisy(60, 0.2, 0.2, seed=seed, per_speaker=2)
        interval = bootstrap_interval(measured, replicates=400)
        hits += interval.low <= 20 <= interval.high
    assert 86 <= hits <= 100


def test_paired_test_sees_a_real_difference_and_no_false_one() -> None:
    a, b = noisy(400, 0.10, 0.15)
    result = compare("A", a, "B", b)
    assert result.difference > 0 and result.p_bootstrap < 0.01 and result.p_mapsswe < 0.01
    assert result.interval[0] > 0
    assert result.relative == pytest.approx(100 * (b.rate - a.rate) / b.rate)
    c, d = noisy(400, 0.12, 0.12, seed=5)
    assert compare("C", c, "D", d).p_bootstrap > 0.05
    assert compare("C", c, "C", c).p_mapsswe == 1.0
    assert paired_bootstrap(c, c)[0] == 1.0


def test_the_seed_decides() -> None:
    a, b = noisy(50, 0.1, 0.2)
    assert bootstrap_interval(a, seed=4) == bootstrap_interval(a, seed=4)
    assert bootstrap_interval(a, seed=4) != bootstrap_interval(a, seed=5)
    assert paired_bootstrap(a, b, seed=4) == paired_bootstrap(a, b, seed=4)


def test_a_pair_must_share_its_references() -> None:
    a = measure({"u": "a b"}, {"u": "a b"})
    with pytest.raises(BadInputError, match="same utterances"):
        compare("A", a, "B", measure({"v": "a b"}, {"v": "a b"}))
    with pytest.raises(BadInputError, match="measure both alike"):
        compare("A", a, "B", measure({"u": "a b"}, {"u": "a b"}, normaliser_name="spoken"))
    with pytest.raises(BadInputError, match="replicate"):
        bootstrap_interval(a, replicates=0)
