"""Lines about the work: a stream that fails does not end it."""

from __future__ import annotations

import errno
import io

import pytest

from ilme.runtime.console import tell


class Full(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "full")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "nobody reads")


def test_lines_are_printed_or_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    tell("one")
    assert capsys.readouterr().err == "one\n"
    own = io.StringIO()
    tell("two", own)
    assert own.getvalue() == "two\n"
    for stream in (Full(), Broken()):
        tell("three", stream)
