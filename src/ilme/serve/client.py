"""A client of the realtime service: `python -m ilme.serve.client ws://localhost:8000 call.wav --model my-domain`.

async for kind, text in transcribe_live("ws://localhost:8000", pieces, rate=16_000):
    print(kind, text)                  # "delta", more words; "completed", a whole turn

A microphone is whatever writes samples:

arecord -q -f S16_LE -r 16000 -t raw | python -m ilme.serve.client ws://localhost:8000 - --model my-domain
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np

from ilme.data.audio import Samples, load_audio
from ilme.errors import IlmeError, MissingExtraError

__all__ = ["at_speaking_pace", "from_pipe", "main", "transcribe_live"]

RATE = 16_000
PIECE = 0.1  # seconds of audio in a message
NOTHING_SAID = "input_audio_buffer_commit_empty"  # the last turn had ended already


async def transcribe_live(
    url: str,
    audio: AsyncIterable[Samples],
    *,
    rate: int = RATE,
    model: str = "",
    key: str = "",
    hotwords: Sequence[str] = (),
    patience: float = 60.0,
) -> AsyncIterator[tuple[str, str]]:
    """Sends audio as it comes; gives ("delta", more words) and ("completed", a turn's whole text).

    Args:
        url: Of the service, such as ws://localhost:8000.
        audio: Mono samples (N,), −1 to 1.
        rate: Samples a second of them.
        model: The domain; the service's first if empty.
        key: The service's.
        hotwords: Names and terms to listen for.
        patience: Seconds to wait for the next word after the last sample.

    Raises:
        IlmeError: The service cannot be reached, refuses, or says nothing for too long.
    """
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException
    except ImportError as error:
        raise MissingExtraError("websockets", "serve") from error
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = f"{url.rstrip('/')}/v1/realtime?intent=transcription&model={quote(model)}"
    try:
        async with connect(where, additional_headers=headers) as line:
            given = {"format": {"type": "audio/pcm", "rate": rate}, "transcription": {"hotwords": list(hotwords)}}
            session = {"type": "transcription", "audio": {"input": given}}
            await line.send(json.dumps({"type": "session.update", "session": session}))
            sending = asyncio.create_task(_send(line, audio))
            try:
                while (event := await _next(line, sending, patience)) is not None:
                    kind = str(event["type"]).rpartition(".")[2]
                    if kind == "delta":
                        yield kind, event["delta"]
                    elif kind == "completed":
                        yield kind, event["transcript"]
                    elif kind == "failed" or (kind == "error" and _ends(event["error"])):
                        raise IlmeError(event["error"]["message"])
            finally:
                sending.cancel()
                with suppress(asyncio.CancelledError, WebSocketException):
                    await sending
    except (OSError, WebSocketException) as error:
        raise IlmeError(f"{url}: {error}") from error


def _ends(error: dict[str, Any]) -> bool:
    """Whether an error is the end: not if the last turn was over already, or one hearing failed that is done again."""
    return error.get("code") != NOTHING_SAID and error.get("type") != "server_error"


async def _next(line: object, sending: asyncio.Task[None], patience: float) -> dict[str, Any] | None:
    """The next event; None after the answer to the last thing that was sent."""
    while True:
        if sending.done():
            sending.result()  # what went wrong with the audio
        try:
            event = json.loads(await asyncio.wait_for(line.recv(), patience))  # type: ignore[attr-defined]
        except TimeoutError:
            if sending.done():
                raise IlmeError(f"the service has said nothing for {patience:.0f} s") from None
            continue  # nobody speaks
        return None if event["type"] == "input_audio_buffer.cleared" else event


async def _send(line: object, audio: AsyncIterable[Samples]) -> None:
    send = line.send  # type: ignore[attr-defined]
    async for samples in audio:
        pcm = np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()
        await send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}))
    await send(json.dumps({"type": "input_audio_buffer.commit"}))
    await send(json.dumps({"type": "input_audio_buffer.clear"}))


async def at_speaking_pace(samples: Samples, rate: int, pace: float = 1.0) -> AsyncIterator[Samples]:
    """Pieces of a recording (N,) when a microphone would have them; a pace of 0 gives them at once."""
    size, clock = int(PIECE * rate), asyncio.get_running_loop()
    began = clock.time()
    for number, start in enumerate(range(0, len(samples), size), 1):
        await asyncio.sleep(max(0.0, began + number * PIECE * pace - clock.time()))
        yield samples[start : start + size]


async def from_pipe(pipe: BinaryIO, rate: int = RATE) -> AsyncIterator[Samples]:
    """16-bit samples that another program writes, as they come."""
    left = b""
    while piece := await asyncio.to_thread(pipe.read, 2 * int(PIECE * rate)):
        left += piece
        whole = len(left) // 2 * 2
        yield np.frombuffer(left[:whole], dtype="<i2").astype(np.float32) / np.float32(32768)
        left = left[whole:]


async def _print(url: str, audio: AsyncIterable[Samples], model: str, key: str, hotwords: Sequence[str]) -> None:
    """Words as they come; a turn whose final text differs from them is written again, in a line of its own."""
    shown = ""
    async for kind, text in transcribe_live(url, audio, model=model, key=key, hotwords=hotwords):
        if kind == "delta":
            shown += text
            print(text, end="", flush=True)
        elif text == shown or not shown:
            print(text if not shown else "", flush=True)
            shown = ""
        else:
            print(f"\n→ {text}", flush=True)
            shown = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ilme.serve.client", description="Speak to a running `ilme serve`.")
    parser.add_argument("url", help="of the service, such as ws://localhost:8000")
    parser.add_argument("file", help="a recording; - reads 16-bit mono samples at 16,000 a second from a pipe")
    parser.add_argument("--model", default="", help="the domain; the service's first if not given")
    parser.add_argument("--key", default=os.environ.get("ILME_KEY", ""), help="the service's; ILME_KEY if not given")
    parser.add_argument("--hotwords", default="", help="names and terms to listen for, with commas")
    parser.add_argument("--pace", type=float, default=1.0, help="0 sends a recording at once, 1 as it was spoken")
    args = parser.parse_args(arguments)
    hotwords = [word.strip() for word in args.hotwords.split(",") if word.strip()]
    try:
        if args.file == "-":
            audio = from_pipe(sys.stdin.buffer)
        else:
            audio = at_speaking_pace(load_audio(args.file, RATE), RATE, args.pace)
        asyncio.run(_print(args.url, audio, args.model, args.key, hotwords))
    except IlmeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
