"""What a realtime session is told about itself: rate, domain, hotwords, where turns begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ilme.serve.service import RequestError
from ilme.serve.turns import TurnOptions

__all__ = ["OPENAI_RATE", "LiveSettings"]

OPENAI_RATE = 24_000  # samples a second, unless the session says otherwise
RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000)
HOTWORDS = 20_000  # most of a session
LONGEST_PREFIX, LONGEST_SILENCE = 5.0, 30.0  # seconds


@dataclass(frozen=True)
class LiveSettings:
    """The settings of a session; they count from the next turn on.

    Attributes:
        model: The domain; empty for the service's first.
        language: That the client says is spoken; empty if it does not say.
        rate: Samples a second that come.
        hotwords: Names and terms to listen for.
        turns: Where turns begin and end; None leaves that to the client.
    """

    model: str = ""
    language: str = ""
    rate: int = OPENAI_RATE
    hotwords: tuple[str, ...] = ()
    turns: TurnOptions | None = field(default_factory=TurnOptions)

    def updated(self, session: Any) -> LiveSettings:
        """With what a `session.update` says, in today's shape or in that of the first version.

        Raises:
            RequestError: Something has a wrong type or cannot be used; nothing is taken then.
        """
        session = _object(session, "session")
        given = _object(_object(session.get("audio"), "session.audio").get("input"), "session.audio.input")
        wanted = given.get("transcription")
        if wanted is None:
            wanted = session.get("input_audio_transcription")
        found = self._transcription(_object(wanted, "transcription"))._format(_object(given.get("format"), "format"))
        for where in (session, given):
            if "turn_detection" in where:
                found = replace(found, turns=_turns(where["turn_detection"]))
        return found

    def _transcription(self, wanted: Mapping[str, Any]) -> LiveSettings:
        found = self
        for name in ("model", "language"):
            if wanted.get(name) is not None:
                found = replace(found, **{name: _text(wanted[name], name)})  # type: ignore[arg-type]
        if wanted.get("hotwords") is not None:
            found = replace(found, hotwords=_hotwords(wanted["hotwords"]))
        return found

    def _format(self, format: Mapping[str, Any]) -> LiveSettings:
        if format.get("type", "audio/pcm") != "audio/pcm":
            raise RequestError("send audio/pcm: 16 bits, little-endian, one channel", 400, "format.type")
        if format.get("rate") is None:
            return self
        rate = _number(format["rate"], "format.rate", 0, RATES[-1])
        if rate not in RATES:
            raise RequestError(f"format.rate is one of {', '.join(map(str, RATES))}, not {rate:g}", 400, "format.rate")
        return replace(self, rate=int(rate))


def _turns(wanted: Any) -> TurnOptions | None:
    if wanted is None:
        return None
    wanted = _object(wanted, "turn_detection")
    if wanted.get("type", "server_vad") != "server_vad":
        raise RequestError("turn_detection has the type server_vad, or is null", 400, "turn_detection.type")
    usual = TurnOptions()

    def number(name: str, usual: float, highest: float, scale: float = 1.0) -> float:
        value = wanted.get(name)
        return usual if value is None else _number(value, f"turn_detection.{name}", 0, highest * scale) / scale

    return TurnOptions(
        number("threshold", usual.threshold, 1.0),
        number("prefix_padding_ms", usual.prefix, LONGEST_PREFIX, 1000),
        number("silence_duration_ms", usual.silence, LONGEST_SILENCE, 1000),
    )


def _object(value: Any, name: str) -> Mapping[str, Any]:
    """A JSON object; an absent one is empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{name} is an object, not {_shown(value)}", 400, name)
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is a text, not {_shown(value)}", 400, name)
    return value


def _number(value: Any, name: str, lowest: float, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} is a number, not {_shown(value)}", 400, name)
    if not lowest <= value <= highest:
        raise RequestError(f"{name} is at least {lowest:g} and at most {highest:g}, not {_shown(value)}", 400, name)
    return float(value)


def _hotwords(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise RequestError("hotwords are a list of texts", 400, "hotwords")
    if len(value) > HOTWORDS:
        raise RequestError(f"at most {HOTWORDS} hotwords are taken, not {len(value)}", 400, "hotwords")
    return tuple(dict.fromkeys(word.strip() for word in value if word.strip()))


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    if isinstance(value, int) and abs(value) > 1e15:
        return "so large a number"
    return repr(value)[:40]
