"""Closes connections that are held open without a request, with an answer that says so.

uvicorn waits for the head of a request as long as the client likes, and so a few thousand clients that send a byte now
and then (slowloris) would keep all others out. While a request is under way its own limits hold
(`ServeOptions.upload_timeout`, `timeout`); at any other time a connection has `patience` seconds.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ilme.serve.guard import error_body

__all__ = ["PatientProtocol", "allow_files"]


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of a request.

    Args:
        *given: As uvicorn makes its protocols.
        patience: Seconds from the opening of a connection, or from an answer, to the end of the next request's head.
        **named: As uvicorn makes its protocols.
    """

    def __init__(self, *given: Any, patience: float = 20.0, **named: Any) -> None:
        super().__init__(*given, **named)
        self._patience = patience
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._forget()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        super().connection_lost(error)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP/1.1 request, or its headers are too large")

    def _watch(self) -> None:
        """The clock runs while no request is under way; more bytes do not set it back."""
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._patience, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        began = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if began and self.conn.our_state is h11.IDLE:
            self._refuse(408, f"the headers of the request did not come within {self._patience:g} s")
        self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps(error_body(message, status)).encode()
        head = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        parts: list[h11.Event] = [
            h11.Response(status_code=status, headers=head, reason=HTTPStatus(status).phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


def allow_files(count: int) -> None:
    """Lets this process open so many files, as far as the system lets it; each connection and each upload is one."""
    try:
        import resource
    except ImportError:  # no POSIX system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
