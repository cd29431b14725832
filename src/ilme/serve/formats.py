"""A transcript as OpenAI's API writes it: json, text, srt, verbose_json, vtt, and the events of a stream."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ilme.recogniser.transcripts import Segment, Transcript, Word, render

__all__ = ["FORMATS", "GRANULARITIES", "answer", "event"]

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("word", "segment")
PLAIN = "text/plain; charset=utf-8"


def answer(
    transcript: Transcript,
    format: str,
    language: str,
    granularities: Sequence[str] = ("segment",),
    temperature: float = 0,
) -> tuple[str, str]:
    """The body and its content type.

    Args:
        transcript: What was said.
        format: One of FORMATS.
        language: That the model writes.
        granularities: What a verbose answer times.
        temperature: As the client gave it; the search has none.
    """
    plain: dict[str, Callable[[], str]] = {
        "text": lambda: transcript.text + "\n",
        "srt": lambda: render(transcript, "srt"),
        "vtt": lambda: render(transcript, "vtt"),
    }
    if format in plain:
        return plain[format](), PLAIN
    body: dict[str, Any] = {"text": transcript.text}
    if format == "verbose_json":
        body = _verbose(transcript, language, granularities, temperature)
    body["usage"] = usage(transcript.seconds)
    return json.dumps(body, ensure_ascii=False), "application/json"


def usage(seconds: float) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(seconds, 3)}


def event(data: dict[str, Any] | str) -> str:
    """One server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"


def _verbose(transcript: Transcript, language: str, granularities: Sequence[str], temperature: float) -> dict[str, Any]:
    spoken = [s for s in transcript.segments if s.text]
    body = {"task": "transcribe", "language": language, "duration": round(transcript.seconds, 3)}
    body["text"] = transcript.text
    if "word" in granularities:
        body["words"] = [_word(w) for s in spoken for w in s.words]
    if "segment" in granularities:
        body["segments"] = [_segment(number, s, temperature) for number, s in enumerate(spoken)]
    return body


def _word(word: Word) -> dict[str, Any]:
    """With a confidence, which OpenAI's has not."""
    return {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3), "confidence": word.confidence}


def _segment(number: int, segment: Segment, temperature: float) -> dict[str, Any]:
    written = segment.text.encode()
    labels = segment.scores.length if segment.scores is not None else 0.0
    return {
        "id": number,
        "seek": round(segment.start * 100),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": [],
        "temperature": temperature,
        "avg_logprob": round(segment.scores.asr / (labels + 1), 4) if segment.scores is not None else 0.0,
        "compression_ratio": round(len(written) / len(zlib.compress(written)), 3),
        "no_speech_prob": 0.0,
    }
