"""Who may call, and what every answer carries: the bearer key, the headers of security, the count of requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ilme.serve.metrics import Metrics

__all__ = ["CSP", "SUBPROTOCOL", "Guard", "error_body"]

OPEN = ("/health", "/ready", "/", "/page/")  # what needs no key; "/page/" with all below it
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
SUBPROTOCOL = "openai-insecure-api-key."  # by which a browser can send a key to a WebSocket
log = logging.getLogger("ilme.serve")


def error_body(message: str, status: int, param: str = "") -> dict[str, object]:
    """An error as OpenAI's clients read it."""
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    code = "model_not_found" if (status, param) == (404, "model") else CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}


class Guard:
    """Wraps the application.

    Args:
        app: The application.
        metrics: Where requests are counted.
        key: What clients must send as `Authorization: Bearer KEY`; empty asks for none.
        origins: Pages of other hosts that may open a WebSocket.
        paths: The paths that exist, for the counters; all others are counted as one.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, key: str = "", origins: Sequence[str] = (), paths: Sequence[str] = ()
    ) -> None:
        self.app, self.metrics, self.origins = app, metrics, tuple(origins)
        self.paths = frozenset(paths)
        self._key = hashlib.sha256(key.encode()).digest() if key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            if self._is_foreign(headers) or not self._may(scope["path"], headers):
                await send({"type": "websocket.close", "code": 1008, "reason": "the key or the origin is wrong"})
                return
            await self.app(scope, receive, send)
            return
        await self._http(scope, receive, send, headers)

    async def _http(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    answered.setdefault(name, value)
            await send(message)

        try:
            if self._may(scope["path"], headers):
                await self.app(scope, receive, noted)
            else:
                await _refuse(noted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            seconds = time.perf_counter() - began
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(seconds)
            log.info("%s %s %d %.3f s", scope["method"], path, status, seconds)

    def _may(self, path: str, headers: Headers) -> bool:
        """The key is compared in constant time, and its length tells nothing."""
        if not self._key or path in OPEN or path.startswith("/page/"):
            return True
        given = [_bearer(headers), *_subprotocol_keys(headers)]
        return any(hmac.compare_digest(hashlib.sha256(key).digest(), self._key) for key in given)

    def _is_foreign(self, headers: Headers) -> bool:
        """Whether a browser shows another site's page: no rule of browsers keeps that from opening a WebSocket."""
        origin = headers.get("origin", "")
        return bool(origin) and origin not in self.origins and urlsplit(origin).netloc != headers.get("host", "")


def _bearer(headers: Headers) -> bytes:
    """The key of `Authorization: Bearer KEY`; nothing if there is none."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _subprotocol_keys(headers: Headers) -> Iterator[bytes]:
    """Keys among the subprotocols: as they are, and percent-encoded, since few characters are allowed there."""
    for protocol in map(str.strip, headers.get("sec-websocket-protocol", "").split(",")):
        if protocol.startswith(SUBPROTOCOL):
            key = protocol.removeprefix(SUBPROTOCOL).encode("latin-1")
            yield from (key, unquote_to_bytes(key))


async def _refuse(send: Send) -> None:
    body = json.dumps(error_body("send the service's key as Authorization: Bearer KEY", 401)).encode()
    head = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": head})
    await send({"type": "http.response.body", "body": body})
