"""Transcript files: every format, times, text that would break a subtitle file."""

from __future__ import annotations

import json

import pytest

from ilme.errors import BadInputError
from ilme.recogniser.transcripts import Segment, Transcript, render, write_transcript
from ilme.search.hypothesis import Scores

TALK = Transcript(
    (
        Segment(0.0, 2.5, "Hello there.", -0.2, Scores(-3.0, -8.0, -7.5, 3)),
        Segment(2.5, 4.0, ""),
        Segment(3661.25, 3662.0004, "A --> B\nand so on."),
    ),
    seconds=3700.0,
    source="talk.wav",
)


def test_plain_text_leaves_silence_out():
    assert render(TALK, "txt") == "Hello there. A --> B\nand so on.\n"
    assert str(TALK) == TALK.text


def test_json_keeps_times_and_every_component_score():
    data = json.loads(render(TALK, "json"))
    parts = {"asr": -3.0, "lm": -8.0, "subtracted": -7.5, "length": 3, "phrases": 0.0}
    assert data["segments"][0]["scores"] == parts
    assert data["segments"][1]["text"] == "" and data["segments"][1]["scores"] is None
    assert data["seconds"] == 3700.0


def test_srt_numbers_spoken_cues_only():
    assert render(TALK, "srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello there.\n\n2\n01:01:01,250 --> 01:01:02,000\nA → B and so on.\n\n"
    )


def test_vtt_starts_with_its_name():
    text = render(TALK, "vtt")
    assert text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello there.\n\n")
    assert text.count("-->") == 2


def test_files_and_unknown_formats(tmp_path):
    written = write_transcript(TALK, tmp_path / "new", "talk", ["txt", "srt"])
    assert [p.name for p in written] == ["talk.txt", "talk.srt"]
    assert written[1].read_text(encoding="utf-8") == render(TALK, "srt")
    assert not list((tmp_path / "new").glob("*.part"))
    with pytest.raises(BadInputError, match="txt, json, srt, vtt"):
        render(TALK, "docx")
