"""Transcripts and the files they are written to: txt, json, srt, vtt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ilme.errors import BadInputError
from ilme.runtime.files import write_text
from ilme.search.hypothesis import Scores

__all__ = ["FORMATS", "Segment", "Transcript", "Word", "check_format", "render", "write_transcript"]


@dataclass(frozen=True)
class Word:
    """A word of a segment.

    Attributes:
        start, end: In seconds from the beginning of the recording.
        text: The word as it is written, with its punctuation.
        confidence: How likely it is right, 0 to 1 (see `ilme.recogniser.confidence`).
    """

    start: float
    end: float
    text: str
    confidence: float


@dataclass(frozen=True)
class Segment:
    """A stretch of speech that was recognised at once.

    Attributes:
        start, end: In seconds from the beginning of the recording.
        text: What was said.
        score: The score by which the text of its window was chosen; 0 for silence.
        scores: The unweighted parts of that score; None for silence.
        words: Its words with their times, where these were asked for and the model can tell.
    """

    start: float
    end: float
    text: str
    score: float = 0.0
    scores: Scores | None = None
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """What was said in a recording.

    Attributes:
        segments: In order.
        seconds: Length of the recording.
        source: Where the audio came from; empty for an array.
    """

    segments: tuple[Segment, ...]
    seconds: float
    source: str = ""

    @property
    def text(self) -> str:
        return " ".join(s.text for s in self.segments if s.text)

    def __str__(self) -> str:
        return self.text


def _txt(transcript: Transcript) -> str:
    return transcript.text + "\n"


def _json(transcript: Transcript) -> str:
    return json.dumps({"text": transcript.text, **asdict(transcript)}, ensure_ascii=False, indent=1) + "\n"


def _srt(transcript: Transcript) -> str:
    spoken = [s for s in transcript.segments if s.text]
    return "".join(
        f"{number}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_one_line(s.text)}\n\n"
        for number, s in enumerate(spoken, 1)
    )


def _vtt(transcript: Transcript) -> str:
    cues = (
        f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_one_line(s.text)}\n\n"
        for s in transcript.segments
        if s.text
    )
    return "WEBVTT\n\n" + "".join(cues)


def _one_line(text: str) -> str:
    """Text that cannot be mistaken for the end of a cue or for the line of its times."""
    return " ".join(text.split()).replace("-->", "→")


def _clock(seconds: float, mark: str) -> str:
    """HH:MM:SS,mmm."""
    thousandths = round(seconds * 1000)
    minutes, thousandths = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{thousandths // 1000:02}{mark}{thousandths % 1000:03}"


FORMATS: dict[str, Callable[[Transcript], str]] = {"txt": _txt, "json": _json, "srt": _srt, "vtt": _vtt}


def check_format(name: str) -> None:
    """An error if no format has that name."""
    if name not in FORMATS:
        raise BadInputError(f"no format is called {name!r}; there are {', '.join(FORMATS)}")


def render(transcript: Transcript, format: str) -> str:
    """The transcript as text of that format."""
    check_format(format)
    return FORMATS[format](transcript)


def write_transcript(transcript: Transcript, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Writes NAME.FORMAT into the folder for each format; each file whole or not at all."""
    written = []
    for format in formats:
        path = folder / f"{name}.{format}"
        write_text(path, render(transcript, format))
        written.append(path)
    return written
