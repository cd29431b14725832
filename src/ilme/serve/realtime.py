"""WS /v1/realtime?intent=transcription: audio in, words out while it is spoken, as OpenAI's realtime service has it.

    audio → 16 kHz → turns (voice activity) → while a turn lasts: what two hearings agree on is sent as a delta
                                            → at its end: the whole turn's text

A message that is wrong is answered with an error event, and the session goes on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from ilme.data.audio import Samples
from ilme.errors import IlmeError
from ilme.recogniser.windows import cut_windows
from ilme.serve.guard import SUBPROTOCOL
from ilme.serve.hearing import HearingError, Turn
from ilme.serve.live_settings import LiveSettings
from ilme.serve.service import RequestError, Service
from ilme.serve.tasks import Settings
from ilme.serve.turns import Resampler, TurnOptions, Turns
from ilme.serve.voice import RATE, VoiceActivity

__all__ = ["Session", "realtime"]

EVENT = "conversation.item.input_audio_transcription"
LARGEST = 15 * 1024 * 1024  # bytes of audio in one message, as base64: OpenAI's limit
SLICE = RATE // 2  # samples that are taken at once, however many come
NONE = np.zeros(0, dtype=np.float32)
EMPTY = "input_audio_buffer_commit_empty"  # OpenAI's code
log = logging.getLogger("ilme.serve")


class Session:
    """One connection.

    Args:
        socket: The connection, accepted.
        service: The domains.
        name: The domain that the address names; a `session.update` may name another.
    """

    def __init__(self, socket: WebSocket, service: Service, name: str) -> None:
        self.socket, self.service = socket, service
        turns = TurnOptions() if service.options.voice_activity else None
        self.settings = LiveSettings(model=name, turns=turns)
        self.resampler = Resampler(self.settings.rate, RATE)
        self.voice: Turns | None = None
        self.kept: Samples = NONE  # audio of no turn, as much as a turn's prefix needs
        self.total = 0  # samples at 16 kHz that came
        self.turn: Turn | None = None
        self._last_item: str | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._complained = False  # about the turn in hand

    async def run(self) -> None:
        """Until the client leaves, or sends nothing for too long."""
        preparing = asyncio.create_task(self._prepare())
        try:
            await self._listen_anew()
            await self.send("session.created", session=self._about())
            while await self._take(await asyncio.wait_for(self.socket.receive(), self.service.options.idle)):
                pass
        except TimeoutError:
            seconds = self.service.options.idle
            with suppress(WebSocketDisconnect):
                await self._complain(RequestError(f"nothing came for {seconds:g} s; connect again to go on"))
                await self.socket.close(1000, "idle")
        except WebSocketDisconnect:
            pass  # while something was being sent
        finally:
            preparing.cancel()
            await self._drop_turn()

    async def send(self, kind: str, **fields: Any) -> None:
        message = {"type": kind, "event_id": f"event_{secrets.token_hex(8)}", **fields}
        await self.socket.send_text(json.dumps(message))

    # --- messages -----------------------------------------------------------------------------------------------------

    async def _take(self, message: Mapping[str, Any]) -> bool:
        """One message; what is wrong with it is said, and the session goes on. False if the client has left."""
        if message["type"] == "websocket.disconnect":
            return False
        event: Any = None
        try:
            if message.get("text") is None:
                raise RequestError("a message is a JSON text; binary frames are not taken: send audio as base64 in "
                                   "input_audio_buffer.append")  # fmt: skip
            event = _parsed(message["text"])
            await self._answer(event)
        except WebSocketDisconnect:
            return False
        except IlmeError as error:
            await self._complain(error, event)
        except Exception as error:  # a fault of ours: this session and the others go on
            log.exception("a realtime message could not be answered")
            await self._complain(error, event)
        return True

    async def _complain(self, error: Exception, event: Any = None, code: str | None = None) -> None:
        """An error event."""
        mine = event.get("event_id") if isinstance(event, dict) else None
        known = isinstance(error, IlmeError)
        details = {
            "type": "invalid_request_error" if isinstance(error, RequestError) else "server_error",
            "message": str(error) if known else f"a fault of the service: {type(error).__name__}",
            "code": code or getattr(error, "code", None),
            "param": getattr(error, "param", None) or None,
            "event_id": mine if isinstance(mine, str) else None,
        }
        await self.send("error", error=details)

    async def _answer(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            samples = _samples(event.get("audio"))
            await self._hear_all(await asyncio.to_thread(self.resampler.feed, samples))
        elif kind == "input_audio_buffer.commit":
            await self._hear_all(await asyncio.to_thread(self.resampler.feed, NONE, True))
            if self.turn is None:
                await self._complain(RequestError("there is no speech to commit"), event, EMPTY)
            else:
                await self._end_turn()
                await self._listen_anew()
        elif kind == "input_audio_buffer.clear":
            await self._drop_turn()
            self.kept = NONE
            self.resampler = Resampler(self.settings.rate, RATE)
            await self._listen_anew()
            await self.send("input_audio_buffer.cleared")
        elif kind in ("session.update", "transcription_session.update"):
            await self._update(event.get("session"))
            await self.send("session.updated", session=self._about())
        else:
            raise RequestError(f"there is no message {str(kind)[:60]!r} for a transcription session", 400, "type")

    async def _update(self, session: Any) -> None:
        wanted = self.settings.updated(session)
        name = self.service.domain(wanted.model)
        if wanted.language:
            known = (await self.service.known(name)).language
            if wanted.language.lower() != known:
                raise RequestError(f"{name} writes {known}, not {wanted.language[:20]!r}", 400, "language")
        before, self.settings = self.settings, wanted
        if wanted.rate != before.rate:
            self.resampler = Resampler(wanted.rate, RATE)
        if self.turn is None and wanted.turns != before.turns:
            await self._listen_anew()

    def _about(self) -> dict[str, Any]:
        turns = self.settings.turns
        detection = None if turns is None else {
            "type": "server_vad",
            "threshold": turns.threshold,
            "prefix_padding_ms": round(1000 * turns.prefix),
            "silence_duration_ms": round(1000 * turns.silence),
        }  # fmt: skip
        audio = {
            "format": {"type": "audio/pcm", "rate": self.settings.rate},
            "transcription": {"model": self.settings.model},
            "turn_detection": detection,
        }
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": {"input": audio}}

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Loads the domain before the client speaks; what goes wrong is told when it does."""
        with suppress(IlmeError):
            await self.service.prepare_stream(self.settings.model)

    async def _listen_anew(self) -> None:
        """Starts voice activity again, with the current settings."""
        options = self.settings.turns
        if options is None and not self.service.options.voice_activity:
            self.voice = None
        elif self.voice is not None and self.voice.options == (options or TurnOptions()):
            self.voice.begin_again()
        else:
            voice = await asyncio.to_thread(VoiceActivity)
            self.voice = Turns(voice, options or TurnOptions())
            self.voice.heard = self.total

    async def _hear_all(self, samples: Samples) -> None:
        for start in range(0, len(samples), SLICE):
            await self._hear(samples[start : start + SLICE])

    async def _hear(self, samples: Samples) -> None:
        if self.turn is not None:
            self.turn.add(samples)
        else:
            self.kept = np.concatenate([self.kept, samples])
        self.total += len(samples)
        if self.settings.turns is None and self.turn is None:
            await self._begin_turn(self.total - len(self.kept), spoken=self.voice is None)
        if self.voice is not None:  # the model takes a moment: not in the event loop
            for what, at in await asyncio.to_thread(self.voice.feed, samples):
                await self._noticed(what, at)
        if self.turn is None:
            prefix = 0.0 if self.settings.turns is None else self.settings.turns.prefix
            self.kept = self.kept[-int((prefix + 1) * RATE) :]
        elif self.turn.seconds > self.turn.longest:
            await self._cut_turn(self.turn)
        elif self.turn.due and (self._hearing is None or self._hearing.done()):
            self._hearing = asyncio.create_task(self._partial(self.turn))

    async def _noticed(self, what: str, at: int) -> None:
        """Speech began or ended."""
        if self.turn is not None and what == "start":
            self.turn.spoken = True  # a turn of which the client says where it ends
        elif what == "start":
            await self._begin_turn(at, spoken=True)
        elif self.turn is not None and self.settings.turns is not None:
            self.kept = self.turn.cut(max(0, at - self.turn.start))
            end = round(1000 * at / RATE)
            await self.send("input_audio_buffer.speech_stopped", audio_end_ms=end, item_id=self.turn.item)
            await self._end_turn()

    async def _begin_turn(self, at: int, spoken: bool) -> None:
        """Begins a turn at that sample; older audio is dropped."""
        name = self.settings.model
        about = await self.service.known(name)
        first = self.total - len(self.kept)
        start = max(at, first)
        item, settings = f"item_{secrets.token_hex(8)}", Settings(self.settings.hotwords)
        self.turn = Turn(self.service, name, about, settings, item, start, self.kept[start - first :], spoken)
        self.kept, self._complained = NONE, False
        if self.settings.turns is not None:
            begin = round(1000 * start / RATE)
            await self.send("input_audio_buffer.speech_started", audio_start_ms=begin, item_id=item)

    async def _partial(self, turn: Turn) -> None:
        """Hears what there is, and what came meanwhile; a failure is said once, and the next hearing begins anew."""
        while turn.due and not turn.over:
            try:
                delta = await turn.partial()
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    await self._complain(error if isinstance(error, IlmeError) else HearingError(type(error).__name__))
                return
            if delta and turn is self.turn:
                await self._delta(turn, delta)

    async def _delta(self, turn: Turn, delta: str) -> None:
        await self.send(f"{EVENT}.delta", item_id=turn.item, content_index=0, delta=delta)

    async def _cut_turn(self, turn: Turn) -> None:
        """Ends a turn that has become too long at a quiet place; the next begins there."""
        place = round(cut_windows(turn.audio, RATE, turn.longest)[0].end * RATE)
        self.kept = turn.cut(place)
        spoken = turn.spoken
        await self._end_turn()
        await self._begin_turn(turn.start + place, spoken)

    async def _end_turn(self) -> None:
        turn = self.turn
        if turn is None:
            return
        turn.over = True
        if self._hearing is not None:
            await asyncio.gather(self._hearing, return_exceptions=True)
        self.turn = None
        await self.send("input_audio_buffer.committed", item_id=turn.item, previous_item_id=self._last_item)
        self._last_item = turn.item
        try:
            text = await turn.final()
        except Exception as error:
            known = isinstance(error, IlmeError)
            message = str(error) if known else f"a fault of the service: {type(error).__name__}"
            details = {"type": "server_error", "message": message}
            await self.send(f"{EVENT}.failed", item_id=turn.item, content_index=0, error=details)
            return
        if rest := turn.agreement.rest(text):
            await self._delta(turn, rest)
        usage = {"type": "duration", "seconds": round(turn.seconds, 3)}
        await self.send(f"{EVENT}.completed", item_id=turn.item, content_index=0, transcript=text, usage=usage)

    async def _drop_turn(self) -> None:
        """Gives up the current turn."""
        turn, self.turn = self.turn, None
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        if turn is not None:
            with suppress(IlmeError):
                await turn.forget()


def _parsed(text: str) -> dict[str, Any]:
    """A message as a JSON object."""
    if len(text) > LARGEST + 1000:
        raise RequestError(f"a message has at most {LARGEST // 2**20} MB; send the audio in smaller pieces")
    try:
        event = json.loads(text)
    except RecursionError:
        raise RequestError("this message is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"this is no JSON: {error}") from None
    if not isinstance(event, dict):
        raise RequestError("a message is a JSON object with a type")
    return event


def _samples(audio: Any) -> Samples:
    """The samples (N,) of a message."""
    if not isinstance(audio, str):
        raise RequestError("audio is base64 of 16-bit samples", 400, "audio")
    try:
        raw = base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"audio is no base64: {error}", 400, "audio") from None
    if len(raw) % 2:
        raise RequestError(f"audio is 16-bit samples, and {len(raw)} bytes are no whole number of them", 400, "audio")
    return np.frombuffer(raw, dtype="<i2").astype(np.float32) / np.float32(32768)


async def realtime(socket: WebSocket, service: Service) -> None:
    """Answers one connection."""
    offered = socket.headers.get("sec-websocket-protocol", "").split(",")
    chosen = next((p.strip() for p in offered if p.strip() and not p.strip().startswith(SUBPROTOCOL)), None)
    await socket.accept(chosen)
    try:
        if service.metrics.streams >= service.options.streams:
            raise RequestError(f"{service.options.streams} streams are open; try again later")
        if socket.query_params.get("intent", "transcription") != "transcription":
            raise RequestError("this service transcribes: connect with intent=transcription")
        name = service.domain(socket.query_params.get("model", ""))
    except RequestError as error:
        details = {"type": "invalid_request_error", "message": str(error)}
        await socket.send_text(json.dumps({"type": "error", "error": details}))
        await socket.close(1013)
        return
    service.metrics.streams += 1
    try:
        await Session(socket, service, name).run()
    finally:
        service.metrics.streams -= 1
