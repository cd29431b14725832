"""What a session may be told; what it cannot use is refused as a whole (odd values: test_realtime)."""

from __future__ import annotations

import pytest

from ilme.serve.live_settings import LiveSettings
from ilme.serve.service import RequestError
from ilme.serve.turns import TurnOptions


def test_todays_shape_is_taken() -> None:
    session = {
        "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 48_000},
                "transcription": {"model": "sea", "language": "en", "hotwords": ["Ahab", " Ahab ", ""]},
                "turn_detection": {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 800},
                "noise_reduction": {"type": "near_field"},
            }
        },
        "include": ["item.input_audio_transcription.logprobs"],
    }
    assert LiveSettings().updated(session) == LiveSettings("sea", "en", 48_000, ("Ahab",), TurnOptions(0.6, 0.3, 0.8))


def test_the_first_shape_is_taken() -> None:
    session = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": "sea"}, "turn_detection": None}
    assert LiveSettings().updated(session) == LiveSettings("sea", turns=None)


def test_what_is_not_said_stays() -> None:
    before = LiveSettings("sea", rate=8_000, hotwords=("Ahab",), turns=None)
    assert before.updated({}) == before.updated(None) == before
    assert before.updated({"audio": {"input": {"format": None, "transcription": {"model": None}}}}) == before


def test_nothing_is_taken_of_what_is_wrong() -> None:
    with pytest.raises(RequestError, match=r"format\.rate"):
        LiveSettings().updated({"audio": {"input": {"transcription": {"model": "x"}, "format": {"rate": 16_001}}}})
