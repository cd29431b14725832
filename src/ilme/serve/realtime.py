"""WS /v1/realtime?intent=transcription: audio in, words out while it is spoken, as OpenAI's realtime service has it.

    audio → 16 kHz → turns (voice activity) → while a turn lasts: what two hearings agree on is sent as a delta
                                            → at its end: the whole turn's text

A transducer that reads in one direction hears each sample once (`ilme.recogniser.streaming`); every other model hears
the turn so far again and again. In both cases only words are sent that two hearings, one after the other, have alike,
so that none is taken back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from ilme.data.audio import HIGHEST_RATE, LOWEST_RATE, Samples, resample
from ilme.errors import IlmeError
from ilme.recogniser.windows import Window
from ilme.serve.guard import SUBPROTOCOL
from ilme.serve.service import RequestError, Service
from ilme.serve.tasks import Failure, Hear, Settings
from ilme.serve.turns import Resampler, TurnOptions, Turns
from ilme.serve.voice import RATE, VoiceActivity

__all__ = ["Agreement", "Session", "realtime"]

OPENAI_RATE = 24_000  # samples a second, unless the session says otherwise
STEP = {True: 0.16, False: 0.6}  # seconds of new audio before the next hearing: of a model that streams, of another
LONGEST = 28.0  # seconds of a turn; a longer one is cut
EVENT = "conversation.item.input_audio_transcription"


class Agreement:
    """The words that two hearings in a row have alike, from the beginning."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._before: list[str] = []

    def add(self, text: str) -> str:
        """What can be sent now, after one more hearing; empty if nothing can."""
        words = text.split()
        agreed = 0
        while agreed < min(len(words), len(self._before)) and words[agreed] == self._before[agreed]:
            agreed += 1
        self._before = words
        more = words[len(self.sent) : agreed]
        delta = " ".join(more)
        delta = f" {delta}" if self.sent and more else delta
        self.sent += more
        return delta


class Turn:
    """A turn that is being heard.

    Args:
        item: Its name.
        start: Its first sample, from the beginning of all, at 16 kHz.
        audio: Its samples so far.
    """

    def __init__(self, item: str, start: int, audio: Samples) -> None:
        self.item, self.start, self.audio = item, start, audio
        self.agreement = Agreement()
        self.heard = 0  # samples that the last hearing had
        self.sent = 0  # samples that a streaming model has


class Session:
    """One connection.

    Args:
        socket: The connection, accepted.
        service: The domains.
        name: The domain that the address names; a `session.update` may name another.
    """

    def __init__(self, socket: WebSocket, service: Service, name: str) -> None:
        self.socket, self.service, self.name = socket, service, name
        self.settings = Settings()
        self.resampler = Resampler(OPENAI_RATE, RATE)
        self.turns: Turns | None = self._turns(TurnOptions()) if service.options.voice_activity else None
        self.kept: Samples = np.zeros(0, dtype=np.float32)  # audio of no turn, as much as a turn's prefix needs
        self.total = 0  # samples at 16 kHz that came
        self.turn: Turn | None = None
        self._last_item: str | None = None
        self._hearing: asyncio.Task[None] | None = None

    @staticmethod
    def _turns(options: TurnOptions) -> Turns:
        return Turns(VoiceActivity(), options)

    async def run(self) -> None:
        """Until the client leaves."""
        await self.send("session.created", session=self._about())
        try:
            while True:
                await self._take(await self.socket.receive_text())
        except (WebSocketDisconnect, KeyError):
            pass
        finally:
            if self._hearing is not None:
                self._hearing.cancel()

    async def send(self, kind: str, **fields: Any) -> None:
        message = {"type": kind, "event_id": f"event_{secrets.token_hex(8)}", **fields}
        await self.socket.send_text(json.dumps(message, ensure_ascii=False))

    async def _take(self, text: str) -> None:
        """One message; what is wrong with it is said, and the session goes on."""
        event: Any = {}
        try:
            event = json.loads(text)
            if not isinstance(event, dict):
                raise RequestError("a message is a JSON object with a type")
            await self._answer(event)
        except (IlmeError, ValueError, TypeError, binascii.Error) as error:
            mine = event.get("event_id") if isinstance(event, dict) else None
            details = {"type": "invalid_request_error", "message": str(error), "code": None, "param": None}
            await self.send("error", error=details | {"event_id": mine})

    async def _answer(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            raw = base64.b64decode(event.get("audio", ""), validate=True)
            samples = np.frombuffer(raw[: len(raw) // 2 * 2], dtype="<i2").astype(np.float32) / np.float32(32768)
            await self._hear(self.resampler.feed(samples))
        elif kind == "input_audio_buffer.commit":
            await self._hear(self.resampler.feed(np.zeros(0, dtype=np.float32), last=True))
            await self._end_turn()
        elif kind == "input_audio_buffer.clear":
            self.turn, self.kept = None, self.kept[:0]
            await self.send("input_audio_buffer.cleared")
        elif kind in ("session.update", "transcription_session.update"):
            self._update(event.get("session") or {})
            await self.send("session.updated", session=self._about())
        else:
            raise RequestError(f"there is no message {str(kind)[:60]!r} for a transcription session")

    def _update(self, session: Mapping[str, Any]) -> None:
        """Takes what a session says, in today's shape or in that of the first version."""
        given = (session.get("audio") or {}).get("input") or {}
        transcription = given.get("transcription") or session.get("input_audio_transcription") or {}
        if transcription.get("model"):
            self.name = self.service.domain(str(transcription["model"]))
        if "hotwords" in transcription:
            self.settings = Settings(tuple(str(p) for p in transcription["hotwords"]))
        format = given.get("format") or {}
        if format.get("type", "audio/pcm") != "audio/pcm":
            raise RequestError("send audio/pcm: 16 bits, one channel")
        if "rate" in format:
            rate = int(format["rate"])
            if not LOWEST_RATE <= rate <= HIGHEST_RATE:
                raise RequestError(f"a rate of {rate} samples a second cannot be used")
            self.resampler = Resampler(rate, RATE)
        for where in (given, session):
            if "turn_detection" in where:
                self._detect(where["turn_detection"])

    def _detect(self, wanted: Mapping[str, Any] | None) -> None:
        if wanted is None:
            self.turns = None
            return
        usual = TurnOptions()
        self.turns = self._turns(
            TurnOptions(
                float(wanted.get("threshold") or usual.threshold),
                float(wanted.get("prefix_padding_ms") or 1000 * usual.prefix) / 1000,
                float(wanted.get("silence_duration_ms") or 1000 * usual.silence) / 1000,
            )
        )
        self.turns.heard = self.total

    def _about(self) -> dict[str, Any]:
        turns = None if self.turns is None else {"type": "server_vad", "threshold": self.turns.options.threshold}
        audio = {
            "format": {"type": "audio/pcm", "rate": self.resampler.source},
            "transcription": {"model": self.name},
            "turn_detection": turns,
        }
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": {"input": audio}}

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _hear(self, samples: Samples) -> None:
        before = self.total
        self.total += len(samples)
        found = [("start", before)] if self.turns is None and self.turn is None and len(samples) else []
        if self.turns is not None:  # the model takes milliseconds: not in the event loop
            found = await asyncio.to_thread(self.turns.feed, samples)
        self.kept = np.concatenate([self.kept, samples])
        if self.turn is not None:
            self.turn.audio = np.concatenate([self.turn.audio, samples])
        for what, at in found:
            await (self._begin_turn(at) if what == "start" else self._stopped(at))
        if self.turn is None:
            most = RATE * (1 if self.turns is None else 1 + int(self.turns.options.prefix))
            self.kept = self.kept[-most:]
            return
        if len(self.turn.audio) >= LONGEST * RATE:
            await self._end_turn()
        elif self._hearing is None or self._hearing.done():
            about = await self.service.known(self.name)
            if len(self.turn.audio) - self.turn.heard >= STEP[about.streams] * RATE:
                self._hearing = asyncio.create_task(self._partial(self.turn))

    async def _begin_turn(self, at: int) -> None:
        first = self.total - len(self.kept)
        start = max(at, first)
        self.turn = Turn(f"item_{secrets.token_hex(8)}", start, self.kept[start - first :])
        self.kept = self.kept[:0]
        if self.turns is not None:
            begin = round(1000 * start / RATE)
            await self.send("input_audio_buffer.speech_started", audio_start_ms=begin, item_id=self.turn.item)

    async def _stopped(self, at: int) -> None:
        if self.turn is not None:
            end = round(1000 * at / RATE)
            await self.send("input_audio_buffer.speech_stopped", audio_end_ms=end, item_id=self.turn.item)
        await self._end_turn()

    async def _partial(self, turn: Turn) -> None:
        turn.heard = len(turn.audio)
        text = await self._text(turn, last=False)
        delta = "" if text is None else turn.agreement.add(text)
        if delta:
            await self.send(f"{EVENT}.delta", item_id=turn.item, content_index=0, delta=delta)

    async def _end_turn(self) -> None:
        turn, self.turn = self.turn, None
        self.kept = self.kept[:0]
        if turn is None:
            return
        if self._hearing is not None:
            await asyncio.gather(self._hearing, return_exceptions=True)
        await self.send("input_audio_buffer.committed", item_id=turn.item, previous_item_id=self._last_item)
        self._last_item = turn.item
        text = await self._text(turn, last=True)
        if text is None:
            error = {"type": "server_error", "message": "it could not be recognised"}
            await self.send(f"{EVENT}.failed", item_id=turn.item, content_index=0, error=error)
            return
        words, sent = text.split(), turn.agreement.sent
        if words[: len(sent)] == sent and len(words) > len(sent):  # else the whole text says it better
            rest = (" " if sent else "") + " ".join(words[len(sent) :])
            await self.send(f"{EVENT}.delta", item_id=turn.item, content_index=0, delta=rest)
        usage = {"type": "duration", "seconds": round(len(turn.audio) / RATE, 3)}
        await self.send(f"{EVENT}.completed", item_id=turn.item, content_index=0, transcript=text, usage=usage)

    async def _text(self, turn: Turn, last: bool) -> str | None:
        """What a turn says so far; None if that cannot be told."""
        about = await self.service.known(self.name)
        audio = resample(turn.audio, RATE, about.rate)
        if not about.streams:
            window = Window(0.0, len(audio) / about.rate, audio)
            found = await self.service.submit(self.name, window, self.settings)
            return None if isinstance(found, Failure) else " ".join(s.text for s in found if s.text)
        for start in (turn.sent, 0):  # a worker that has lost the beginning gets all of it again
            task = Hear(turn.item, self.name, self.service.jobs[self.name], audio[start:], start, last, self.settings)
            text = await self.service.run_stream(task)
            if isinstance(text, str):
                turn.sent = len(audio)
                return text
            if isinstance(text, Failure):
                return None
        return None


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
        await socket.send_text(json.dumps({"type": "error", "error": {"message": str(error)}}))
        await socket.close(1013)
        return
    service.metrics.streams += 1
    try:
        await Session(socket, service, name).run()
    finally:
        service.metrics.streams -= 1
