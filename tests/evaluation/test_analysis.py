"""Words fixed and broken, by hand-made transcripts."""

from __future__ import annotations

from collections import Counter

import pytest

from ilme.errors import BadInputError
from ilme.evaluation.analysis import by_frequency, domain_words, oracle, search_errors, word_changes, word_recall
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, Scores

REFERENCES = {"1": "the whale swam away", "2": "call me ishmael", "3": "the sea"}
BEFORE = measure(REFERENCES, {"1": "the wail swam away", "2": "call me fish male", "3": "the sea"})
AFTER = measure(REFERENCES, {"1": "the whale swam", "2": "call me ishmael", "3": "the the sea"})


def test_words_fixed_and_broken() -> None:
    changes = word_changes(BEFORE, AFTER)
    assert changes.fixed == Counter({"whale": 1, "ishmael": 1})
    assert changes.broken == Counter({"away": 1})
    assert changes.inserted == Counter({"the": 1})
    assert changes.removed.total() == 1
    back = word_changes(AFTER, BEFORE)
    assert (back.fixed, back.broken) == (changes.broken, changes.fixed)
    errors = sum(c.errors for c in (AFTER.total,)) - BEFORE.total.errors
    gained = changes.broken.total() - changes.fixed.total() + changes.inserted.total() - changes.removed.total()
    assert gained == errors
    with pytest.raises(BadInputError, match="same references"):
        word_changes(BEFORE, measure({"1": "x"}, {"1": "x"}))


def test_recall_by_kind_and_frequency() -> None:
    groups = word_recall(BEFORE, {"whale": "animal", "ishmael": "name", "sea": "place"})
    assert {n: (g.words, g.right) for n, g in groups.items()} == {
        "animal": (1, 0),
        "name": (1, 0),
        "place": (1, 1),
    }
    rare = by_frequency(BEFORE, {"the": 500, "call": 50, "me": 50, "sea": 3, "swam": 2, "away": 10})
    assert [(g.name, g.words, g.right) for g in rare] == [
        ("never", 2, 0),
        ("1–10", 3, 3),
        ("11–100", 2, 2),
        ("101–1000", 2, 2),
        (">1000", 0, 0),
    ]
    assert rare[1].recall == 100 and rare[4].recall == 0
    for edges in ((10, 5), (5, 5)):
        with pytest.raises(BadInputError, match="edges must rise"):
            by_frequency(BEFORE, {}, edges)
    assert [g.name for g in by_frequency(BEFORE, {}, (2, 5))] == ["0–2", "3–5", ">5"]


def test_domain_words_are_frequent_in_the_target_alone() -> None:
    target = ["the whale and the whale", "a whale of the sea"] * 5
    source = ["the house and the senate", "a bill of the house"] * 50
    found = domain_words(target, source)
    assert "whale" in found and "sea" in found
    assert "the" not in found and "house" not in found
    with pytest.raises(BadInputError, match="empty"):
        domain_words([], source)


def hypothesis(text: str, asr: float, lm: float = 0.0) -> Hypothesis:
    return Hypothesis((1,), asr, Scores(asr, lm), text=text)


def test_oracle_takes_the_best_of_each_list() -> None:
    lists = {"1": [hypothesis("a x", -1), hypothesis("a b", -2)], "2": [hypothesis("c", -1), hypothesis("", -2)]}
    counts = oracle(lists, {"1": "A b.", "2": "c d"}, normaliser_name="spoken")
    assert (counts.errors, counts.words) == (1, 4)
    with pytest.raises(BadInputError, match="'3' has no n-best"):
        oracle(lists, {"3": "x"})


def test_search_errors_and_model_errors() -> None:
    references = {"1": "a", "2": "b", "3": "c"}
    decoded = {i: [hypothesis(t, -5.0, -10.0)] for i, t in (("1", "a"), ("2", "x"), ("3", "x"))}
    known = {"2": [hypothesis("b", -6.0, -2.0)], "3": [hypothesis("c", -9.0, -9.0)]}
    found = search_errors(decoded, known, references, FusionWeights(lm=0.5))
    assert (found.right, found.search, found.model, found.missed) == (1, 1, 1, ("2",))
    assert search_errors(decoded, known, references, FusionWeights()).search == 0


@pytest.mark.parametrize(("ratio", "marks"), [(5.0, True), (5.1, False)])
def test_the_ratio_of_a_domain_word_is_of_counts_with_one_added(ratio: float, marks: bool) -> None:
    """5 of 10 words against (0 + 1) of (9 + 1): five times as often."""
    target, source = ["new new new new new a b c d e"], ["a b c d e f g h i"]
    assert ("new" in domain_words(target, source, ratio=ratio)) is marks
    assert ("new" in domain_words(target, source, ratio=1.0, least=6)) is False
