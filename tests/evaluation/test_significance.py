"""Intervals against scipy's bootstrap, the matched-pairs test against the textbook's worked example."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from ilme.errors import BadInputError
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import (
    _errors_by_slot,
    bootstrap_interval,
    compare,
    compare_gains,
    mapsswe,
    paired_bootstrap,
    segment_errors,
    sign_test,
)

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


# --- worked out by hand -----------------------------------------------------------------------------------------------


class EveryDraw:
    """In place of a random generator: every way to draw n groups out of n, each once and in order."""

    def __init__(self, groups: int) -> None:
        self.left = itertools.product(range(groups), repeat=groups)

    def integers(self, high: int, size: tuple[int, int]) -> np.ndarray:
        return np.array([next(self.left) for _ in range(size[0])])


def three_speakers(*errors: int) -> Measurement:
    """Three speakers of two utterances with two words each; the errors of each speaker."""
    references = {f"{speaker}{k}": "a b" for speaker in "xyz" for k in range(2)}
    speakers = {i: i[0] for i in references}
    hypotheses = {}
    for speaker, wrong in zip("xyz", errors, strict=True):
        words = ["-"] * wrong + ["a", "b", "a", "b"][wrong:]
        hypotheses |= {f"{speaker}0": " ".join(words[:2]), f"{speaker}1": " ".join(words[2:])}
    return measure(references, hypotheses, speakers=speakers)


@pytest.fixture(params=[1, 7, 10_000], ids=lambda n: f"{n} draws at once")
def every_draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", lambda seed: EveryDraw(3))
    monkeypatch.setattr("ilme.evaluation.significance._DRAWS_AT_ONCE", 3 * request.param)


@pytest.mark.usefixtures("every_draw")
def test_the_interval_of_all_27_draws() -> None:
    """Errors 0, 1 and 4. Of 27 sums 0 is the least, once, then 1, three times; 12 the largest, once, after 9."""
    interval = bootstrap_interval(three_speakers(0, 1, 4), replicates=27)
    assert interval.groups == 3
    assert interval.low == pytest.approx(100 * 0.65 / 12)  # 0.025 · 26 = 0.65: between 0 and 1
    assert interval.high == pytest.approx(100 * (9 + 0.35 * 3) / 12)  # 0.975 · 26 = 25.35: between 9 and 12


@pytest.mark.usefixtures("every_draw")
def test_the_p_value_of_all_27_draws() -> None:
    """b − a is 2, 1 and −1. Sums up to 0: −3 once, −1 three times, 0 three times; so 7 of 27, and one is added."""
    p, (low, high) = paired_bootstrap(three_speakers(0, 0, 1), three_speakers(2, 1, 0), replicates=27)
    assert p == pytest.approx(2 * (7 + 1) / (27 + 1))
    assert low == pytest.approx(100 * (-3 + 0.65 * 2) / 12)  # between −3 and −1
    assert high == pytest.approx(100 * (5 + 0.35 * 1) / 12)  # between 5 and 6
    compared = compare("a", three_speakers(0, 0, 1), "b", three_speakers(2, 1, 0), replicates=27)
    assert compared.p_bootstrap == p and compared.interval == (low, high)
    assert compared.difference == pytest.approx(100 * 2 / 12)
    assert compared.relative == pytest.approx(100 * 2 / 3)


@pytest.mark.usefixtures("every_draw")
def test_the_p_value_is_the_same_from_both_sides() -> None:
    p, _ = paired_bootstrap(three_speakers(2, 1, 0), three_speakers(0, 0, 1), replicates=27)
    assert p == pytest.approx(2 * (7 + 1) / (27 + 1))


@pytest.mark.usefixtures("every_draw")
def test_a_system_that_is_never_worse_has_the_smallest_p() -> None:
    p, _ = paired_bootstrap(three_speakers(0, 0, 0), three_speakers(1, 2, 3), replicates=27)
    assert p == pytest.approx(2 * (0 + 1) / (27 + 1))


def test_draws_of_empty_references_alone_have_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the four draws of two speakers one has no words; the rates of the others are 50, 50 and 50."""
    monkeypatch.setattr(np.random, "default_rng", lambda seed: EveryDraw(2))
    measured = measure({"x": "a b", "y": ""}, {"x": "a -", "y": ""})
    interval = bootstrap_interval(measured, replicates=4)
    assert bootstrap_interval(three_speakers(1, 1, 1), replicates=1).low == 25.0
    assert (interval.low, interval.high, interval.groups) == (50.0, 50.0, 2)
    with pytest.raises(BadInputError, match="hold no words"):
        bootstrap_interval(measure({"y": ""}, {"y": ""}), replicates=4)


def test_mapsswe_at_its_edges() -> None:
    references = {"u": "a b c", "v": "d e f"}
    right, wrong = measure(references, references), measure(references, {"u": "a - c", "v": "d - f"})
    assert mapsswe(right, wrong) == (math.inf, 0.0), "every segment is one error worse"
    assert mapsswe(wrong, right) == (-math.inf, 0.0)
    assert mapsswe(right, right) == (0.0, 1.0)
    one = measure(references, {"u": "a - c", "v": "d e f"})
    assert mapsswe(right, one) == (0.0, 1.0), "one segment says nothing about chance"
    assert compare("a", right, "b", right, replicates=5).relative == 0.0
    letters = measure(references, references, unit="character")
    with pytest.raises(BadInputError, match="compares words"):
        mapsswe(letters, letters)
    assert compare("a", letters, "b", letters, replicates=5).p_mapsswe is None


def test_a_segment_ends_after_two_good_words_of_both() -> None:
    assert segment_errors("a b c d", "- b - d", "a b c d") == [(2, 0)], "one good word between does not end it"
    assert segment_errors("a b c d", "- b c -", "a b c d") == [(1, 0), (1, 0)]
    assert segment_errors("a b c d", "- b c -", "a b - d") == [(2, 1)], "good words of one system alone do not end it"
    assert segment_errors("a b c d", "- b c -", "a b c d", good_words=3) == [(2, 0)]
    assert segment_errors("a b", "a b", "x a b") == [(0, 1)], "an insertion before the first word"
    assert segment_errors("a b", "a b", "a b x y") == [(0, 2)], "and after the last"


def test_errors_stand_at_words_and_in_the_gaps_between_them() -> None:
    """2N + 1 slots: gap, word, gap, word, gap."""
    assert _errors_by_slot("a b", "a b") == [0, 0, 0, 0, 0]
    assert _errors_by_slot("a b", "x a y z b w") == [1, 0, 2, 0, 1]
    assert _errors_by_slot("a b", "a") == [0, 0, 0, 1, 0]
    assert _errors_by_slot("a b", "- b") == [0, 1, 0, 0, 0]
    assert _errors_by_slot("", "x y") == [2]


def wrong_words(counts: dict[str, int]) -> Measurement:
    """One utterance of ten words for each speaker, so many of them wrong."""
    words = [f"w{k}" for k in range(10)]
    texts = {speaker: " ".join(["x"] * wrong + words[wrong:]) for speaker, wrong in counts.items()}
    return measure(dict.fromkeys(counts, " ".join(words)), texts, speakers={s: s for s in counts})


def test_gains_of_two_pairs_are_compared_in_points_and_by_draws_of_speakers() -> None:
    """Every draw of speakers gives the first pair a gain of 50 %, the second one of 25 %."""
    many, half, most = ({f"s{k}": errors for k in range(6)} for errors in (8, 4, 6))
    first, second = (wrong_words(half), wrong_words(many)), (wrong_words(most), wrong_words(many))
    points, p = compare_gains(first, second, replicates=199)
    assert (points, p) == (pytest.approx(25.0), 2 * 1 / 200)
    assert compare_gains(second, first, replicates=199) == (pytest.approx(-25.0), 2 * 1 / 200)
    assert compare_gains(first, first, replicates=199) == (0.0, 1.0), "no draw tells them apart"


def test_gains_on_two_sets_see_draws_of_their_own() -> None:
    """Half of one set's speakers gain, and a quarter of the other's: how often they do is drawn with two seeds."""
    before = wrong_words(dict.fromkeys("abcdefgh", 8))
    after = wrong_words({s: 4 if s < "e" else 8 for s in "abcdefgh"})
    there = wrong_words(dict.fromkeys("ijklmnop", 8)), wrong_words({s: 4 if s < "k" else 8 for s in "ijklmnop"})
    points, p = compare_gains((after, before), (there[1], there[0]), replicates=99, seed=3)
    here, elsewhere = (np.random.default_rng(seed).integers(8, size=(99, 8)) for seed in (3, 4))
    delta = (here < 4).sum(1) - (elsewhere < 2).sum(1)
    tail = min(int((delta <= 0).sum()), int((delta >= 0).sum()))
    assert points == pytest.approx(12.5) and p == 2 * (tail + 1) / 100 < 1


def test_gains_on_one_set_see_the_same_draws() -> None:
    """Speakers a and b gain with the first pair, c, d and e with the second, in draws of the seed that is given."""
    before = wrong_words(dict.fromkeys("abcdefgh", 8))
    first = wrong_words({s: 4 if s < "c" else 8 for s in "abcdefgh"})
    second = wrong_words({s: 4 if "c" <= s < "f" else 8 for s in "abcdefgh"})
    points, p = compare_gains((first, before), (second, before), replicates=99, seed=3)
    drawn = np.random.default_rng(3).integers(8, size=(99, 8))
    delta = (drawn < 2).sum(1) - ((drawn >= 2) & (drawn < 5)).sum(1)
    tail = min(int((delta <= 0).sum()), int((delta >= 0).sum()))
    assert points == pytest.approx(-6.25) and p == 2 * (tail + 1) / 100 < 1


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (4, 0), (5, 0), (0, 5), (7, 1), (30, 30), (700, 650)])
def test_the_sign_test_is_the_binomial_one(better, worse):
    n = better + worse
    expected = stats.binomtest(better, n, 0.5, alternative="greater").pvalue if n else 1.0
    assert sign_test(better, worse) == pytest.approx(expected, rel=1e-9)


def test_the_sign_test_by_hand():
    assert (sign_test(5, 0), sign_test(7, 1), sign_test(0, 5)) == (1 / 32, 9 / 256, 1.0)
