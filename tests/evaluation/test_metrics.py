"""Error counts against jiwer itself, a plain dynamic programme, and hand-counted cases."""

from __future__ import annotations

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilme.data.utterances import unique_by_id
from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts, align, count_each, measure, normaliser

texts = st.lists(st.sampled_from("abcd"), max_size=7).map(" ".join)


def edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    row = list(range(len(hypothesis) + 1))
    for i, r in enumerate(reference, 1):
        previous, row[0] = row[0], i
        for j, h in enumerate(hypothesis, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (r != h))
    return row[-1]


@given(texts, texts)
def test_errors_are_the_edit_distance(reference: str, hypothesis: str) -> None:
    (counts,) = count_each([reference], [hypothesis])
    assert counts.errors == edit_distance(reference.split(), hypothesis.split())
    assert counts.words == len(reference.split())
    edits = align(reference, hypothesis)
    assert [e.reference for e in edits if e.reference] == reference.split()
    assert [e.hypothesis for e in edits if e.hypothesis] == hypothesis.split()
    assert sum(e.kind != "equal" for e in edits) == counts.errors


@given(st.lists(st.tuples(texts.filter(bool), texts), min_size=1, max_size=6))
def test_total_is_jiwers_wer_and_cer(pairs: list[tuple[str, str]]) -> None:
    references = {str(i): r for i, (r, _) in enumerate(pairs)}
    hypotheses = {str(i): h for i, (_, h) in enumerate(pairs)}
    measured = measure(references, hypotheses)
    assert measured.rate == pytest.approx(100 * jiwer.wer([r for r, _ in pairs], [h for _, h in pairs]))
    characters = measure(references, hypotheses, unit="character")
    assert characters.rate == pytest.approx(100 * jiwer.cer([r for r, _ in pairs], [h for _, h in pairs]))


def test_groups_add_up() -> None:
    references = {"1": "a b c d e f", "2": "a b", "3": "c d", "4": ""}
    hypotheses = {"1": "a b c d e", "2": "a x", "3": "c d d", "4": "z"}
    measured = measure(references, hypotheses, speakers={"1": "ann", "2": "bob", "3": "ann"})
    assert measured.total == ErrorCounts(hits=8, substitutions=1, deletions=1, insertions=2)
    assert measured.by_speaker() == {
        "ann": ErrorCounts(7, 0, 1, 1),
        "bob": ErrorCounts(1, 1, 0, 0),
        "4": ErrorCounts(0, 0, 0, 1),
    }
    by_length = measured.by_length((2, 5))
    assert list(by_length) == ["≤2", ">5"]
    assert sum(by_length.values(), ErrorCounts()) == measured.total


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none", "  Mr.  Smith\n said ", "Mr. Smith said"),
        ("spoken", "Mr. Smith's 21 dogs, 'tis the 3rd!", "mister smith's twenty one dogs tis the third"),
        ("spoken", "1,200 or 3.5 – it’s O.K.", "one thousand two hundred or three point five it's o k"),
        ("basic", "Schließe die Rollläden – JETZT, um 7!", "schließe die rollläden jetzt um 7"),
        ("whisper", "Mr. Smith's colour, um, won't", "mister smith is color will not"),
    ],
)
def test_normalisers(name: str, text: str, expected: str) -> None:
    if name == "whisper":
        pytest.importorskip("whisper_normalizer")
    assert normaliser(name).__call__(text).replace(",", "") == expected  # type: ignore[arg-type]


def test_the_normaliser_is_applied_to_both_sides_and_kept() -> None:
    measured = measure({"u": "It's 7."}, {"u": "it's seven"}, normaliser_name="spoken")
    assert measured.rate == 0
    assert measured.normaliser == "spoken"
    assert measure({"u": "It's 7."}, {"u": "it's seven"}).rate == 100


def test_bad_input_is_named() -> None:
    with pytest.raises(BadInputError, match="no references"):
        measure({}, {})
    with pytest.raises(BadInputError, match=r"1 of 2 utterances have no hypothesis.*'b'"):
        measure({"a": "x", "b": "y"}, {"a": "x"})
    with pytest.raises(BadInputError, match=r"hypotheses have no reference.*'c'"):
        measure({"a": "x"}, {"a": "x", "c": "y"})
    with pytest.raises(BadInputError, match="no words"):
        _ = measure({"a": ""}, {"a": ""}).rate
    with pytest.raises(BadInputError, match="'a' comes twice in refs"):
        unique_by_id([("a", 1), ("a", 2)], "refs")
    with pytest.raises(BadInputError, match="no normaliser 'loud'"):
        normaliser("loud")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="unit"):
        measure({"a": "x"}, {"a": "x"}, unit="phone")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="edges must rise"):
        measure({"a": "x"}, {"a": "x"}).by_length((5, 5))


def test_the_hypothesis_is_normalised_too_and_both_are_kept_so() -> None:
    measured = measure({"u": "it's seven"}, {"u": "It's 7!"}, normaliser_name="spoken")
    assert measured.rate == 0
    (utterance,) = measured.utterances
    assert (utterance.reference, utterance.hypothesis) == ("it's seven", "it's seven")
    raw = measure({"u": "it's  seven"}, {"u": " It's 7!"})
    assert raw.total.substitutions == 2
    assert (raw.utterances[0].reference, raw.utterances[0].hypothesis) == ("it's seven", "It's 7!")


def test_every_count_is_kept_apart() -> None:
    references = {"one wrong": "a b c", "one missing": "a b c", "two too many": "a b"}
    hypotheses = {"one wrong": "a x c", "one missing": "a c", "two too many": "a b c d"}
    counts = measure(references, hypotheses).total
    assert (counts.hits, counts.substitutions, counts.deletions, counts.insertions) == (6, 1, 1, 2)
    assert (counts.words, counts.errors, counts.rate) == (8, 4, 50.0)


def test_lengths_are_grouped_by_edges_that_belong_to_the_lower_group() -> None:
    references = {str(n): " ".join(["w"] * n) for n in (2, 3, 4, 5, 6)}
    groups = measure(references, dict.fromkeys(references, "")).by_length((3, 5))
    assert {name: counts.words for name, counts in groups.items()} == {"≤3": 5, "4–5": 9, ">5": 6}
    for edges in ((), (5, 3), (3, 3)):
        with pytest.raises(BadInputError, match="must rise"):
            measure(references, references).by_length(edges)
