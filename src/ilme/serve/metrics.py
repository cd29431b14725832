"""What the service counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ilme.errors import MissingExtraError

if TYPE_CHECKING:
    from ilme.serve.batching import Waiting
    from ilme.serve.service import Service

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
USUAL = 0.1  # seconds for a second of audio, until some have been measured


class Metrics:
    """The counters of one service."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            raise MissingExtraError("prometheus-client", "serve") from error
        self.registry = CollectorRegistry()
        at = self.registry
        self.requests = Counter("ilme_requests", "Requests, by path and status", ["path", "status"], registry=at)
        self.latency = Histogram("ilme_request_seconds", "Until the answer", ["path"], buckets=SECONDS, registry=at)
        self.audio = Counter("ilme_audio_seconds", "Seconds of audio that were recognised", ["model"], registry=at)
        self.batches = Histogram("ilme_batch_windows", "Windows that were searched at once", buckets=SIZES, registry=at)
        self.decoding = Counter("ilme_decoding_seconds", "Seconds that searches took", registry=at)
        self.workers_died = Counter("ilme_workers_died", "Workers that died and were replaced", registry=at)
        self._under_way = Gauge("ilme_requests_under_way", "Requests that are under way", registry=at)
        self._waiting = Gauge("ilme_audio_waiting_seconds", "Seconds of audio that wait for a worker", registry=at)
        self._streams = Gauge("ilme_streams", "Realtime streams that are open", registry=at)
        self.streams = 0
        self._heard = self._spent = 0.0

    def watch(self, service: Service) -> None:
        """Lets the gauges look at the service when they are read."""
        self._under_way.set_function(lambda: service.under_way)
        self._waiting.set_function(lambda: service.pool.seconds if service.pool else 0.0)
        self._streams.set_function(lambda: self.streams)

    def batch_done(self, batch: Sequence[Waiting], seconds: float) -> None:
        self.batches.observe(len(batch))
        self.heard(batch[0].key.name, sum(w.seconds for w in batch), seconds)

    def heard(self, name: str, audio: float, seconds: float) -> None:
        """So many seconds of audio were recognised for a domain, in so many seconds."""
        self.decoding.inc(seconds)
        self.audio.labels(name).inc(audio)
        self._heard += audio
        self._spent += seconds

    def seconds_for(self, audio: float) -> float:
        """How long so many seconds of audio will take, from what others took."""
        return audio * (self._spent / self._heard if self._heard else USUAL)

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
