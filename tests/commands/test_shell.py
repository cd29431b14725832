"""A command in its shell: any text can be printed, and a signal ends it in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ilme import cli

# A command that stands in for `ilme info`: its body goes between the braces. Signals are as a terminal leaves them.
STAND_IN = """
import os, sys, time, signal, ilme.cli as cli
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def run(*_):
    {}
cli.run = run
sys.exit(cli.main(["info"]))
"""


def start(body: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STAND_IN.format(body.replace("\n", "\n    "))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, **pipes)  # type: ignore[call-overload,no-any-return]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def unread(body: str, unbuffered: str = "") -> tuple[int, str]:
    """Status and errors of a command whose output has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    status, _, errors = finish(start(body, stdout=writer, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}))
    os.close(writer)
    return status, errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_reads_ends_a_command_quietly(unbuffered: str) -> None:
    assert unread("print('x')", unbuffered) == (cli.READER_LEFT, "")
    assert unread("return cli.overview([])", unbuffered) == (cli.READER_LEFT, "")


def test_real_errors_still_show_when_nobody_reads_the_output() -> None:
    assert unread("print('x'); raise cli.IlmeError(42)") == (cli.READER_LEFT, "ilme info: 42\n")
    status, errors = unread("print('x'); raise RuntimeError(43)")
    assert status not in (0, cli.READER_LEFT) and "RuntimeError: 43" in errors


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_text_can_be_printed_in_any_encoding(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    status, out, err = finish(start(r"print('λ \udcff'); print('λ', file=sys.stderr)", env=environment))
    expected = ("λ" if encoding == "utf-8" else r"\u03bb") + r" \udcff"
    assert (status, out, err.split()) == (0, f"{expected}\n", [expected.split()[0]])


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_lose_no_work(tmp_path: Path, streams: str) -> None:
    done = tmp_path / "done"
    body = f"print('λ'); print('λ', file=sys.stderr); sys.stderr.isatty(); open({str(done)!r}, 'w').write('all')"
    file = tmp_path / "code.py"
    file.write_text(STAND_IN.format(body), encoding="utf-8")
    assert subprocess.run(f"{sys.executable} {file} {streams}", shell=True, check=False).returncode == 0
    assert done.read_text() == "all"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        status, _, errors = finish(start("print('x')", stdout=full, env={**os.environ, "PYTHONUNBUFFERED": ""}))
    assert (status, errors) == (1, "ilme: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("number", "status", "told"),
    [(signal.SIGINT, 130, "ilme info: interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
)
def test_signals_close_what_is_open(tmp_path: Path, number: signal.Signals, status: int, told: str) -> None:
    closed = tmp_path / "closed"
    body = f"try:\n    print('begun', flush=True); time.sleep(60)\nfinally:\n    open({str(closed)!r}, 'w').close()"
    process = start(body)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert finish(process) == (status, "", told)
    assert closed.exists()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_sigterm_ends_workers(method: str) -> None:
    """Workers that would sleep on, even where the way out waits for them, as a pool does."""
    body = (
        "import multiprocessing\n"
        f"worker = multiprocessing.get_context('{method}').Process(target=time.sleep, args=(60,))\n"
        "worker.start(); print(worker.pid, flush=True)\n"
        "try:\n    time.sleep(60)\nfinally:\n    worker.join()"
    )
    process = start(body)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_a_worker_that_loses_the_first_signal_is_asked_again() -> None:
    """As one does that was forked a moment ago."""
    body = (
        "import multiprocessing\n"
        "def work():\n"
        "    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))\n"
        "    print(os.getpid(), flush=True); time.sleep(60)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\n"
        "try:\n    time.sleep(60)\nfinally:\n    worker.join()"
    )
    process = start(body)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_an_error_that_ending_workers_causes_does_not_hide_the_signal() -> None:
    process = start(
        "try:\n    print('begun', flush=True); time.sleep(60)\nfinally:\n    raise RuntimeError('a worker died')"
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "", "")


def test_a_signal_that_is_ignored_stays_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cli.end_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
