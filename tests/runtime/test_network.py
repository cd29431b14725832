"""A server of this process, and none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ilme.runtime.network import silent_because


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refuses) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()


def test_a_server_that_refuses_answers(server: str) -> None:
    assert silent_because(server) == ""


@pytest.mark.parametrize("where", ["http://127.0.0.1:9", "nowhere", "http://"])
def test_what_does_not_answer_has_a_reason(where: str) -> None:
    assert silent_because(where)
