"""POST /v1/audio/transcriptions: what was asked for, and the answer, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.datastructures import FormData, UploadFile

from ilme.errors import IlmeError
from ilme.recogniser.transcripts import Segment, Transcript
from ilme.serve.formats import FORMATS, GRANULARITIES, answer, event
from ilme.serve.guard import error_body
from ilme.serve.service import Recording, RequestError, Service
from ilme.serve.tasks import Settings
from ilme.serve.uploads import on_disk

__all__ = ["Asked", "complete", "streamed"]

PHRASES = 20_000  # most of a request
EVENTS = ("json", "text")  # formats that a stream may be asked for with: it has one of its own
FIELDS = ("file", "model", "language", "prompt", "response_format", "temperature", "stream", "chunking_strategy")
LISTS = ("timestamp_granularities", "hotwords", "keywords", "languages")
REFUSED = {
    "include": "for the model's confidence ask for response_format=verbose_json and timestamp_granularities[]=word",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
}
log = logging.getLogger("ilme.serve")


@dataclass(frozen=True)
class Asked:
    """The fields of a request, checked.

    Attributes:
        upload: The file.
        name: The domain.
        format: Format of the answer.
        granularities: What a verbose answer times.
        stream: Whether the answer comes as it is found.
        languages: Those that the client says may be spoken; none if it does not say.
        temperature: As the client gave it.
        settings: What changes the search.
    """

    upload: UploadFile
    name: str
    format: str
    granularities: tuple[str, ...]
    stream: bool
    languages: tuple[str, ...]
    temperature: float
    settings: Settings

    @classmethod
    def read(cls, form: FormData, service: Service) -> Asked:
        """Reads a form as OpenAI's API does."""
        _check_names(form)
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise RequestError("send the audio in the field file", 400, "file")
        name = service.domain(_text(form, "model"))
        format = _text(form, "response_format") or "json"
        if format not in FORMATS:
            raise RequestError(
                f"no format is called {format!r}; there are {', '.join(FORMATS)}", 400, "response_format"
            )
        wanted = tuple(str(g) for key in _both("timestamp_granularities") for g in form.getlist(key))
        if wanted and format != "verbose_json":
            raise RequestError(
                "timestamp_granularities need response_format=verbose_json", 400, "timestamp_granularities"
            )
        if unknown := [g for g in wanted if g not in GRANULARITIES]:
            raise RequestError(
                f"there is no granularity {unknown[0]!r}; there are word and segment", 400, "timestamp_granularities"
            )
        stream = _flag(_text(form, "stream"))
        if stream and format not in EVENTS:
            raise RequestError(f"a stream is of events, not of {format}; leave one of them out", 400, "response_format")
        return cls(
            upload=upload,
            name=name,
            format=format,
            granularities=wanted or ("segment",),
            stream=stream,
            languages=_languages(form),
            temperature=_temperature(_text(form, "temperature")),
            settings=Settings(_phrases(form), "word" in wanted),
        )

    @property
    def title(self) -> str:
        """What the client calls its file."""
        return (self.upload.filename or "the upload")[:200]

    def check_language(self, language: str) -> None:
        if self.languages and language not in self.languages:
            raise RequestError(
                f"{self.name} writes {language}, not {', '.join(self.languages)[:40]!r}", 400, "language"
            )


def _both(name: str) -> tuple[str, str]:
    """A list's name, as curl's users and as clients write it."""
    return name, f"{name}[]"


def _check_names(form: FormData) -> None:
    """Every field is known and is text, and only lists are given more than once: a word mistyped is not passed over."""
    for name, value in form.multi_items():
        plain = name.removesuffix("[]")
        if plain in REFUSED:
            raise RequestError(f"{plain} is not offered: {REFUSED[plain]}", 400, plain)
        if name not in FIELDS and plain not in LISTS:
            near = get_close_matches(plain, (*FIELDS, *LISTS), 1)
            hint = f"; is {near[0]} meant?" if near else ""
            raise RequestError(f"there is no field {plain[:40]!r}{hint}", 400, plain[:40])
        if isinstance(value, UploadFile) != (plain == "file"):
            what = "the audio, as a file with a name" if plain == "file" else "text, not a file"
            raise RequestError(f"the field {plain} is {what}", 400, plain)
        if plain in FIELDS and len(form.getlist(name)) > 1:
            raise RequestError(f"{plain} was given more than once", 400, plain)


def _text(form: FormData, name: str) -> str:
    return str(form.get(name, ""))


def _flag(text: str) -> bool:
    if text.lower() not in ("", "true", "false", "1", "0"):
        raise RequestError(f"stream is true or false, not {text[:20]!r}", 400, "stream")
    return text.lower() in ("true", "1")


def _languages(form: FormData) -> tuple[str, ...]:
    given = [_text(form, "language"), *(str(v) for key in _both("languages") for v in form.getlist(key))]
    return tuple(word.strip().lower() for word in given if word.strip())


def _temperature(text: str) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise RequestError(f"temperature is a number between 0 and 1, not {text[:20]!r}", 400, "temperature")
    return value


def _phrases(form: FormData) -> tuple[str, ...]:
    """Names and terms to listen for: fields `hotwords` or `keywords`, with commas or one in a line."""
    given = [str(value) for key in (*_both("hotwords"), *_both("keywords")) for value in form.getlist(key)]
    phrases = [p.strip() for value in given for line in value.splitlines() for p in line.split(",") if p.strip()]
    if len(phrases) > PHRASES:
        raise RequestError(f"at most {PHRASES} hotwords are taken, not {len(phrases)}", 400, "hotwords")
    return tuple(dict.fromkeys(phrases))


async def complete(service: Service, asked: Asked, path: Path) -> Response:
    """The whole answer."""
    try:
        async with asyncio.timeout(service.options.timeout):
            recording = await _opened(service, asked, path)
            found = [s async for segments in service.segments(recording) for s in segments]
    except TimeoutError:
        raise _too_slow(service) from None
    transcript = _noted(service, Transcript(tuple(found), recording.seconds, asked.title))
    language = service.about[asked.name].language
    body, kind = answer(transcript, asked.format, language, asked.granularities, asked.temperature)
    return Response(body, media_type=kind)


async def streamed(service: Service, asked: Asked, form: FormData) -> Response:
    """Events as windows are recognised; what is wrong with the audio is said before the first of them."""
    held = AsyncExitStack()
    held.push_async_callback(form.close)
    try:
        path = await held.enter_async_context(on_disk(asked.upload))
        recording = await _opened(service, asked, path)
        held.enter_context(service.admitted())  # until the last event, when the request itself is long answered
    except BaseException:
        await held.aclose()
        raise

    async def events() -> AsyncIterator[str]:
        async with held:
            async for line in _events(service, asked, recording):
                yield line

    return StreamingResponse(events(), media_type="text/event-stream")


async def _events(service: Service, asked: Asked, recording: Recording) -> AsyncIterator[str]:
    found: list[Segment] = []
    try:
        async with asyncio.timeout(service.options.timeout):
            async for segments in service.segments(recording):
                delta = " ".join(s.text for s in segments if s.text)
                before = any(s.text for s in found)
                found += segments
                if delta:
                    yield event({"type": "transcript.text.delta", "delta": f" {delta}" if before else delta})
    except TimeoutError:
        yield event(error_body(str(_too_slow(service)), 503))
        return
    except IlmeError as error:  # the status has been sent: the client finds it among the events
        yield event(error_body(str(error), 500))
        return
    transcript = _noted(service, Transcript(tuple(found), recording.seconds, asked.title))
    done: dict[str, Any] = {"type": "transcript.text.done", "text": transcript.text}
    yield event(done)
    yield event("[DONE]")


async def _opened(service: Service, asked: Asked, path: Path) -> Recording:
    asked.check_language((await service.known(asked.name)).language)
    return await service.open(path, asked.title, asked.name, asked.settings)


def _noted(service: Service, transcript: Transcript) -> Transcript:
    """Writes what was said to the log, if that was asked for."""
    if service.options.log_text:
        log.info("%.1f s: %s", transcript.seconds, transcript.text)
    return transcript


def _too_slow(service: Service) -> RequestError:
    return RequestError(f"it took more than {service.options.timeout:.0f} s; cut the recording", 503)
