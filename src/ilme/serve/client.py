"""A client of the realtime service: `python -m ilme.serve.client ws://localhost:8000 call.wav --model my-domain`.

async for kind, text in transcribe_live("ws://localhost:8000", pieces, rate=16_000):
    print(kind, text)                  # "delta", more words; "completed", a whole turn
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import AsyncIterable, AsyncIterator
from urllib.parse import quote

import numpy as np

from ilme.data.audio import Samples, load_audio
from ilme.errors import IlmeError, MissingExtraError

__all__ = ["at_speaking_pace", "transcribe_live"]

PIECE = 0.1  # seconds of audio in a message


async def transcribe_live(
    url: str,
    audio: AsyncIterable[Samples],
    *,
    rate: int = 16_000,
    model: str = "",
    key: str = "",
    patience: float = 30.0,
) -> AsyncIterator[tuple[str, str]]:
    """Sends audio as it comes; gives ("delta", more words) and ("completed", a turn's whole text).

    Args:
        url: Of the service, such as ws://localhost:8000.
        audio: Mono samples (N,), −1 to 1.
        rate: Samples a second of them.
        model: The domain; the service's first if empty.
        key: The service's.
        patience: Seconds to wait for the last turn after the last sample.
    """
    try:
        from websockets.asyncio.client import connect
    except ImportError as error:
        raise MissingExtraError("websockets", "serve") from error
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = f"{url}/v1/realtime?intent=transcription&model={quote(model)}"
    async with connect(where, additional_headers=headers) as line:
        format = {"type": "audio/pcm", "rate": rate}
        session = {"type": "transcription", "audio": {"input": {"format": format}}}
        await line.send(json.dumps({"type": "session.update", "session": session}))
        sending = asyncio.create_task(_send(line, audio))
        try:
            while True:
                wait = patience if sending.done() else None
                event = json.loads(await asyncio.wait_for(line.recv(), wait))
                kind = str(event["type"]).rpartition(".")[2]
                if kind == "error":
                    raise IlmeError(event["error"]["message"])
                if kind == "delta":
                    yield kind, event["delta"]
                elif kind == "completed":
                    yield kind, event["transcript"]
                elif kind == "cleared":  # the answer to the last thing that was sent
                    return
        finally:
            sending.cancel()


async def _send(line: object, audio: AsyncIterable[Samples]) -> None:
    send = line.send  # type: ignore[attr-defined]
    async for samples in audio:
        pcm = np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()
        await send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}))
    await send(json.dumps({"type": "input_audio_buffer.commit"}))
    await send(json.dumps({"type": "input_audio_buffer.clear"}))


async def at_speaking_pace(samples: Samples, rate: int, pace: float = 1.0) -> AsyncIterator[Samples]:
    """Pieces of a recording (N,) as a microphone would give them; a pace of 0 gives them at once."""
    size = int(PIECE * rate)
    for start in range(0, len(samples), size):
        yield samples[start : start + size]
        await asyncio.sleep(PIECE * pace)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("file")
    parser.add_argument("--model", default="")
    parser.add_argument("--key", default="")
    args = parser.parse_args()
    samples = load_audio(args.file, 16_000)
    async for kind, text in transcribe_live(
        args.url, at_speaking_pace(samples, 16_000), model=args.model, key=args.key
    ):
        print(text, end="\n" if kind == "completed" else "", flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
