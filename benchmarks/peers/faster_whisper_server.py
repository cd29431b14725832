"""A server of the same API around faster-whisper, one request at a time, as small servers of it do.

`PYTHON benchmarks/peers/faster_whisper_server.py FOLDER --port 8000`, where
PYTHON has faster-whisper, FastAPI, uvicorn and python-multipart. Beam and threads are those of `ilme serve` for
Whisper, weights are float32, and its own voice-activity filter is on.
"""

from __future__ import annotations

import argparse
import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI, UploadFile
from faster_whisper import WhisperModel

BEAM = 8

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--no-voice-activity", action="store_true")
args = parser.parse_args()

model = WhisperModel(args.model, device="cpu", compute_type="float32", cpu_threads=1)
decoding = ThreadPoolExecutor(1)
app = FastAPI()


@app.get("/ready")
async def ready() -> dict[str, str]:
    return {"status": "ready"}


@app.post("/v1/audio/transcriptions")
async def transcriptions(file: UploadFile) -> dict[str, str]:
    audio = io.BytesIO(await file.read())
    return {"text": await asyncio.get_running_loop().run_in_executor(decoding, transcribe, audio)}


def transcribe(audio: io.BytesIO) -> str:
    segments, _ = model.transcribe(audio, beam_size=BEAM, language="en", vad_filter=not args.no_voice_activity)
    return "".join(segment.text for segment in segments).strip()


uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")
