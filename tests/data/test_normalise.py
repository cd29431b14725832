"""What each profile makes of a text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.data.normalise import clean, normalise, spoken, written


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("“Don’t!” said Mr. Bennet.", "don't said mister bennet"),
        ("In 1984, 3 of 1,250 came.", "in nineteen eighty four three of one thousand two hundred and fifty came"),
        ("It cost $5.20 (£3), €1.", "it cost five dollars and twenty cents three pounds one euro"),
        ("£2.01 and $1.50 million", "two pounds and one penny and one point five zero million dollars"),
        ("At 10:30 or 9:05 or 8:00", "at ten thirty or nine oh five or eight o'clock"),
        ("The 21st and 3rd of the 1920s", "the twenty first and third of the nineteen twenties"),
        ("pi is 3.14, 50% & more", "pi is three point one four fifty percent and more"),
        (
            "call 0800 1234567890123456",
            "call zero eight zero zero one two three four five six seven eight nine zero one two three four five six",
        ),
        ("café naïve Ångström", "cafe naive angstrom"),
        ("well-known—rock 'n' roll_", "well known rock n roll"),
        ("St. Louis, Dr. Jones & co.", "saint louis doctor jones and co"),
        ("A4 paper, B12", "a four paper b twelve"),
        ("北京 ２０２５", "北京 twenty twenty five"),
        ("", ""),
        ("?!... --- \t\r\n\u200b", ""),
    ],
)
def test_spoken(text, want):
    assert spoken(text) == want


def test_written_keeps_case_and_punctuation():
    assert (
        written("  “Don’t!”\u00a0 said Mr. Bennet\x00 in 1813 \ufeff— _twice_.")
        == '"Don\'t!" said Mr. Bennet in 1813 — twice.'
    )
    assert clean("ﬁne\r\n") == "fine"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_spoken_has_only_lower_case_letters_and_inner_apostrophes(text):
    result = spoken(text)
    assert spoken(result) == result
    assert result == " ".join(result.split())
    assert not re.search(r"[0-9A-Z.,;:!?\"()\[\]$%&-]", result)
    assert not any(w.startswith("'") or w.endswith("'") for w in result.split())


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_written_changes_nothing_twice(text):
    assert normalise(normalise(text, "written"), "written") == normalise(text, "written")


@given(st.integers(0, 10**15 - 1))
def test_every_number_is_said(number):
    assert re.fullmatch(r"[a-z ]+", spoken(str(number)))


@pytest.mark.parametrize(
    "text",
    [
        "." * 100_000,
        "1" * 100_000,
        "1," * 50_000,
        "'" * 100_000,
        "a." * 50_000,
        "$1 " * 20_000,
        "111," * 25_000,
        "1.1" * 30_000,
    ],
)
def test_hostile_lines_take_linear_time(text):
    began = time.process_time()
    assert not re.search(r"\d", spoken(text))
    assert time.process_time() - began < 10
