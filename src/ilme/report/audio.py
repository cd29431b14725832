"""Recordings inside the report: small, mono, playable by every browser."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from ilme.data.audio import audio_info, load_audio

__all__ = ["data_uri"]

RATE = 16000
SMALL = 200_000  # bytes; a compressed file up to this size is taken as it is
TYPES = {".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".opus": "audio/ogg", ".oga": "audio/ogg"}


def data_uri(path: Path) -> str:
    """The recording as a data URI: a small compressed file as it stands, any other one as Ogg Opus."""
    audio_info(path)  # an error where it is no audio, or no regular file
    if path.suffix.lower() in TYPES and path.stat().st_size <= SMALL:
        return _uri(path.read_bytes(), TYPES[path.suffix.lower()])
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, load_audio(path, RATE), RATE, format="OGG", subtype="OPUS")
    return _uri(out.getvalue(), "audio/ogg")


def _uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
