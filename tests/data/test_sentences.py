"""Where sentences end."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilme.data.normalise import clean
from ilme.data.sentences import guess_layout, paragraphs, split_sentences


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Mr. Smith met Dr. J. R. Jones. They ate.", ["Mr. Smith met Dr. J. R. Jones.", "They ate."]),
        ('"Stop!" he said. "Why?" She left.', ['"Stop!" he said.', '"Why?"', "She left."]),
        ("It was I. He knew, e.g. Tom did.", ["It was I.", "He knew, e.g. Tom did."]),
        ("Wait... What? 3 men came.", ["Wait...", "What?", "3 men came."]),
        ("version 2.5 is out. “Ähnlich.” Ja.", ["version 2.5 is out.", '"Ähnlich."', "Ja."]),
        ("no end and no capital. so one sentence", ["no end and no capital. so one sentence"]),
        ("See No. 5 there. No. No. Yes!", ["See No. 5 there.", "No.", "No.", "Yes!"]),
        ("", []),
        ("   \n ", []),
    ],
)
def test_split(text, want):
    assert split_sentences(text) == want


@given(st.text(alphabet="Aa. !?\"'()\n1Mr", max_size=60))
def test_nothing_is_lost(text):
    assert " ".join(split_sentences(text)) == clean(text)


@pytest.mark.parametrize("text", ["." * 200_000, ". " * 100_000, "a" * 200_000, "A. " * 60_000, '."' * 100_000])
def test_time_is_linear(text):
    began = time.process_time()
    split_sentences(text)
    assert time.process_time() - began < 5


WRAPPED = [
    "It was the best of times, it was",
    "the worst of times. It was the age",
    "of wisdom.",
    "",
    "Next one starts here and",
    "goes on.",
]


def test_layouts():
    assert guess_layout(WRAPPED) == "wrapped"
    assert guess_layout(["One is here.", "Two is here.", "Three!", "Four?"]) == "lines"
    assert guess_layout(["no marks here", "nor here", "nor there", "at all"]) == "lines"
    novel = [*(WRAPPED[:3] * 20), " A new one starts here, and it", "goes on. And on"]
    assert guess_layout(novel) == "indented"
    assert guess_layout([]) == "lines"


def test_paragraphs():
    assert list(paragraphs(WRAPPED, "wrapped")) == [" ".join(WRAPPED[:3]), " ".join(WRAPPED[4:])]
    assert list(paragraphs(WRAPPED, "lines")) == [line for line in WRAPPED if line]
    assert list(paragraphs(["a", "b", " c", "d"], "indented")) == ["a b", " c d"]
    assert list(paragraphs([], "wrapped")) == []


def test_a_paragraph_without_end_is_cut():
    pieces = list(paragraphs(["x" * 1000] * 200, "wrapped"))
    assert len(pieces) > 1 and sum(p.count("x") for p in pieces) == 200_000
