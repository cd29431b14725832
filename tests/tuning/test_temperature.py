"""The temperature of the consensus is chosen by dev's errors, and by more than luck."""

from __future__ import annotations

import pytest

from ilme.search.hypothesis import Hypothesis, Scores
from ilme.tuning.temperature import LADDER, USUAL, choose_temperature


def nbest(*texts):
    return [Hypothesis((n, 1, 1), -n / 2, Scores(-n / 2), text=text) for n, text in enumerate(texts)]


AGREEING = nbest("x y z", "a b c", "a b d", "a b e")  # the consensus of a warm posterior is "a b c"


def test_dev_says_whether_the_list_is_heard():
    lists = {str(n): AGREEING for n in range(4)}
    chosen = choose_temperature(lists, dict.fromkeys(lists, "a b c"), "none")
    assert chosen.temperature > 0 and chosen.counts.errors == 0 and chosen.errors[0.0] == 12
    kept = choose_temperature(lists, dict.fromkeys(lists, "x y z"), "none")
    assert kept.temperature == 0.0 and kept.counts.errors == 0 and set(kept.errors) == {0.0, *LADDER}


def test_it_can_be_told():
    lists, references = {"1": AGREEING}, {"1": "x y z"}
    assert choose_temperature(lists, references, "none", decoding="consensus").temperature == LADDER[0]
    assert choose_temperature(lists, {"1": "a b c"}, "none", decoding="best").temperature == 0.0


def test_one_lucky_temperature_is_not_enough(monkeypatch):
    """Errors 10 without; along the ladder 11, 9, 11, 11, 11, 11: no three neighbours have fewer on average."""
    taken = dict(zip((0.0, *LADDER), (10, 11, 9, 11, 11, 11, 11), strict=True))
    monkeypatch.setattr(
        "ilme.tuning.temperature.choose",
        lambda nbest, t, exponent: [Hypothesis((), 0, Scores(0), text="x " * taken[t])],
    )
    chosen = choose_temperature({"1": AGREEING}, {"1": ""}, "none")
    assert chosen.temperature == 0.0 and chosen.errors == pytest.approx(taken)


def test_one_error_mended_is_no_reason():
    """The consensus has the one error of the best right; it takes two to be believed."""
    said = {"1": "a b c"}
    near = {"1": nbest("a b x", "a b c", "a b d", "a d c")}
    kept = choose_temperature(near, said, "none")
    assert kept.errors[0.0] == 1 and min(kept.errors.values()) == 0 and kept.temperature == 0.0


def test_the_lists_without_lms_take_part_if_they_mend_enough():
    """Each utterance has three errors with LMs, none without, where the list is sure: both together believe the latter.

    The second search has to mend more than four errors and two per cent of all.
    """
    fused, plain = nbest("x y z", "a b c"), [Hypothesis((9, 1, 1), -0.01, Scores(-0.01), text="a b c")]
    for count, joined in ((1, False), (2, True)):
        lists = {str(n): fused for n in range(count)}
        beside = dict.fromkeys(lists, plain)
        chosen = choose_temperature(lists, dict.fromkeys(lists, "a b c"), "none", plain=beside)
        assert chosen.joined == joined and (chosen.temperature > 0) == joined
        assert chosen.counts.errors == (0 if joined else 3 * count)
        assert chosen.errors[0.0] == 3 * count and set(chosen.joined_errors) == set(LADDER)
        assert set(chosen.joined_errors.values()) == {0}
    assert choose_temperature(lists, dict.fromkeys(lists, "a b c"), "none").joined_errors == {}


def test_a_second_search_has_to_pay(monkeypatch):
    """Of 1,000 errors more than twenty and four must go."""
    monkeypatch.setattr("ilme.tuning.temperature.choose", lambda nbest, t, exponent: nbest)
    lists = {"1": [Hypothesis((), 0, Scores(0), text="x " * 1000)]}
    for errors, joined in ((976, False), (975, True)):
        told = [Hypothesis((), 0, Scores(0), text="x " * errors)]
        monkeypatch.setattr("ilme.tuning.temperature.consensus", lambda *a, told=told: told)
        assert choose_temperature(lists, {"1": ""}, "none", plain=lists).joined == joined


def test_joined_can_be_told_where_there_are_such_lists():
    lists, references = {"1": AGREEING}, {"1": "x y z"}
    taken = choose_temperature(lists, references, "none", decoding="joined", plain=lists)
    assert taken.joined and taken.temperature > 0
    without = choose_temperature(lists, references, "none", decoding="joined")
    assert not without.joined and without.temperature > 0
    assert not choose_temperature(lists, references, "none", decoding="consensus", plain=lists).joined


@pytest.mark.parametrize(
    ("best", "both", "joined"), [(10, 11, True), (10, 12, False), (1000, 981, True), (1000, 983, False)]
)
def test_where_joined_is_expected_a_small_dev_set_keeps_it(monkeypatch, best, both, joined):
    """One error more is no reason to leave it, two are; of 1,000 it has to mend eighteen."""

    def told(errors):
        return [Hypothesis((), 0, Scores(0), text="x " * errors)]

    monkeypatch.setattr("ilme.tuning.temperature.choose", lambda nbest, t, exponent: nbest)
    monkeypatch.setattr("ilme.tuning.temperature.consensus", lambda *a: told(both))
    lists = {"1": told(best)}
    taken = choose_temperature(lists, {"1": ""}, "none", plain=lists, expect_joined=True)
    assert taken.joined == joined and taken.temperature == (USUAL if joined else 0.0)
    without = choose_temperature(lists, {"1": ""}, "none", expect_joined=True)
    assert not without.joined and without.temperature == 0.0
    usual = choose_temperature(lists, {"1": ""}, "none", decoding="usual", plain=lists, expect_joined=True)
    assert (usual.joined, usual.temperature) == (True, USUAL), "whatever dev says"
    for changes in ({"plain": None}, {"expect_joined": False}):
        given = {"plain": lists, "expect_joined": True} | changes
        usual = choose_temperature(lists, {"1": ""}, "none", decoding="usual", **given)
        assert (usual.joined, usual.temperature) == (False, 0.0)
