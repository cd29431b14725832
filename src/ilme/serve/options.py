"""The options of the service. They stand apart so that the command line can show them without loading torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ilme.errors import BadInputError

__all__ = ["ServeOptions"]


@dataclass(frozen=True)
class ServeOptions:
    """How requests are batched, and what is refused.

    Attributes:
        batch_seconds: Seconds of audio that are searched at once.
        batch_size: Most windows that are searched at once.
        wait: Seconds that a window waits for others to be searched with, while a worker is idle.
        queue: Requests that may be under way; one more is told to come back (429).
        upload_mb: Largest upload, in megabytes.
        longest: Longest recording, in seconds.
        head_timeout: Seconds in which the headers of a request must have come.
        upload_timeout: Seconds in which an upload must have come.
        timeout: Seconds in which a request must be done, from the end of its upload.
        connections: Connections that may be open.
        streams: Realtime streams that may be open.
        idle: Seconds after which a realtime stream that sends nothing is closed.
        domains: Domains that may be served; clients' texts make no more.
        text_mb: Largest text of a new domain, in megabytes.
        adapt_timeout: Seconds in which a new domain must be made.
        voice_activity: Let a voice-activity model decide whether anything is said; else only silence is passed over.
        log_text: Write what was said to the log.
    """

    batch_seconds: float = 60.0
    batch_size: int = 16
    wait: float = 0.02
    queue: int = 128
    upload_mb: float = 200.0
    longest: float = 14_400.0
    head_timeout: float = 20.0
    upload_timeout: float = 120.0
    timeout: float = 3600.0
    connections: int = 2000
    streams: int = 16
    idle: float = 600.0
    domains: int = 16
    text_mb: float = 20.0
    adapt_timeout: float = 1800.0
    voice_activity: bool = True
    log_text: bool = False

    def __post_init__(self) -> None:
        positive = (
            "batch_seconds",
            "upload_mb",
            "longest",
            "head_timeout",
            "upload_timeout",
            "timeout",
            "idle",
            "text_mb",
            "adapt_timeout",
        )
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise BadInputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        if not 0 <= self.wait < math.inf:
            raise BadInputError(f"wait must not be negative, got {self.wait!r}")
        for name, least in {"batch_size": 1, "queue": 1, "connections": 1, "streams": 0, "domains": 1}.items():
            if getattr(self, name) < least:
                raise BadInputError(f"{name} must be at least {least}, got {getattr(self, name)}")
