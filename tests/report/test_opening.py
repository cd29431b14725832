"""The report's opening: what it claims is what was counted, whoever wins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.data.utterances import Reference
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.report.gather import gather_set
from ilme.report.opening import gains, gather_opening, recommended

SAID = {"a": "one two three four five", "b": "six seven eight nine ten"}
WRONG = {  # errors of ten words
    10: {"a": "x x x x x", "b": "x x x x x"},
    6: {"a": "one two x x x", "b": "six seven x x x"},
    4: {"a": "one x x x x", "b": "six seven eight nine ten"},
    3: {"a": "one two three four five", "b": "six seven x x x"},
    0: {"a": "one two three four five", "b": "six seven eight nine ten"},
}

BEGIN = "Of every 100 word errors that Whisper makes on bank calls,"


def results(name: str = "bank calls", audio: Path | None = None, **errors: int) -> Results:
    """Systems of one model that make so many errors in ten words."""
    references = {
        i: Reference(text, f"speaker {i}", 1.0, "" if audio is None else str(audio / f"{i}.wav"))
        for i, text in SAID.items()
    }
    systems = [System("Whisper", m, FusionWeights(), WRONG[n]) for m, n in errors.items()]
    return Results(name, "none", references, tuple(systems))


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    for name in SAID:
        soundfile.write(tmp_path / f"{name}.wav", np.random.default_rng(0).normal(0, 0.1, 1600), 16_000)
    return tmp_path


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (
            {"BS": 10, "SF": 6, "ILME": 4},
            f"{BEGIN} ILME takes 60 away; Shallow Fusion takes 40 away.",
        ),
        (
            {"BS": 6, "SF": 3, "ILME": 4},
            f"{BEGIN} ILME takes 33 away (in 10 words that may be chance, p 0.49); Shallow Fusion takes 50 away."
            " Shallow Fusion is best here.",
        ),
        (
            {"BS": 10, "SF": 6, "DR": 3, "ILME": 4},
            f"{BEGIN} ILME takes 60 away; Shallow Fusion takes 40 away."
            " Best here is Density Ratio, which takes 70 away.",
        ),
        (
            {"BS": 4, "ILME": 6},
            f"{BEGIN} ILME adds 50 (in 10 words that may be chance, p 0.49). It is best left alone here.",
        ),
        ({"BS": 0, "ILME": 3}, "On bank calls Whisper makes no error."),
    ],
)
def test_the_sentence_says_who_won(errors: dict[str, int], said: str) -> None:
    assert [gain.sentence for gain in gains([results(**errors)])] == [said]


def test_phrases_are_recommended_where_there_are_any() -> None:
    part = results(**{"BS": 10, "ILME": 4, "ILME + phrases": 3})
    assert recommended(results(BS=10, SF=6), "Whisper") is None
    assert recommended(results(BS=10, ILME=6), "Whisper").method == "ILME"  # type: ignore[union-attr]
    assert recommended(part, "Whisper").method == "ILME + phrases"  # type: ignore[union-attr]
    assert gains([results(BS=10, SF=6)]) == []


def test_cards_set_the_recommended_method_against_no_lm_and_sf_and_name_a_better_one() -> None:
    cards = gather_set(results(BS=10, SF=4, DR=3, ILME=6), transcripts=0, audio=0)["headlines"]
    assert [c["of"] for c in cards] == ["Whisper: ILME against BS", "Whisper: ILME against SF"]
    assert [c["best"] for c in cards] == ["best here: DR, 30.00"] * 2
    assert [round(c["relative"]) for c in cards] == [-40, 50]
    cards = gather_set(results(BS=10, SF=6, ILME=4), transcripts=0, audio=0)["headlines"]
    assert [c["best"] for c in cards] == ["", ""]
    cards = gather_set(results(BS=10, SF=6, DR=4), transcripts=0, audio=0)["headlines"]
    assert [c["of"] for c in cards] == ["Whisper: DR against BS", "Whisper: DR against SF"]


def test_words_fixed_are_at_first_those_of_the_recommended_method_against_no_lm() -> None:
    gathered = gather_set(results(**{"BS": 10, "SF": 6, "ILME": 4, "ILME + phrases": 3}), transcripts=0, audio=0)
    assert gathered["changes"][gathered["change"]]["name"] == "Whisper ILME + phrases against Whisper BS"
    gathered = gather_set(results(SF=6, DR=4), transcripts=0, audio=0)
    assert gathered["change"] == len(gathered["changes"]) - 1 == 0


def test_recordings_that_gained_most_are_heard_before_and_after(audio: Path) -> None:
    opening = gather_opening([results("bank calls", audio, BS=6, ILME=3), results("books", audio, BS=10, ILME=4)])
    heard = opening["recordings"]
    assert [(h["set"], h["id"]) for h in heard] == [("bank calls", "a"), ("books", "b"), ("books", "a")]
    first = heard[0]
    assert first["audio"].startswith("data:audio/ogg;base64,") and first["reference"] == SAID["a"]
    assert first["before"] == ["one", "two", ["s", "three", "x"], ["s", "four", "x"], ["s", "five", "x"]]
    assert first["after"] == SAID["a"].split()
    assert (first["beforeName"], first["afterName"]) == ("Whisper", "with ILME")
    assert opening["note"] == "Those of 4 that gained most. 3 have fewer errors than before, 0 have more."


def test_nothing_is_heard_where_nothing_was_gained_or_recorded(audio: Path, tmp_path: Path) -> None:
    assert gather_opening([results("set", audio, BS=3, ILME=10)])["recordings"] == []
    assert gather_opening([results("set", tmp_path / "none", BS=10, ILME=3)])["recordings"] == []
    assert gather_opening([results("set", audio, BS=10, SF=3)]) == {
        "claims": [],
        "recordings": [],
        "note": "",
        "chosen": "",
    }
