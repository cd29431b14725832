"""`ilme serve` as a process: it starts, answers, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from ilme.cli import main
from tests.checkpoints import write_wave
from tests.commands.conftest import Decoded


def test_wrong_calls_are_told(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "domains" in capsys.readouterr().err.lower()
    assert main(["serve", "no-such-domain"]) == 1
    assert "no domain folder" in capsys.readouterr().err
    assert main(["serve", str(decoded.folder / "rnnt"), str(decoded.folder / "rnnt")]) == 1
    assert "two of them are called rnnt" in capsys.readouterr().err
    assert main(["serve", str(decoded.folder / "rnnt"), "--options.queue", "0"]) == 2
    assert "queue must be at least 1" in capsys.readouterr().err
    assert main(["serve", str(decoded.folder / "rnnt"), "--workers", "-1"]) == 2


@pytest.mark.slow
def test_it_answers_and_ends(decoded: Decoded, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = str(decoded.folder / "rnnt")
    command = [sys.executable, "-m", "ilme.cli", "serve", model, "--port", str(port)]
    command += ["--options.voice_activity", "false"]
    quiet = {**os.environ, "ILME_KEY": "secret"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(1500):
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.04)
        wave = write_wave(tmp_path / "a.wav", 0.9)
        files = {"file": wave.read_bytes()}
        assert httpx.post(f"{url}/v1/audio/transcriptions", files=files).status_code == 401
        key = {"Authorization": "Bearer secret"}
        found = httpx.post(f"{url}/v1/audio/transcriptions", files=files, headers=key, timeout=60)
        assert found.status_code == 200 and found.json()["text"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 143) and f"serving rnnt at {url}" in out
        assert "Traceback" not in err
        assert found.json()["text"] not in err and "POST /v1/audio/transcriptions 200" in err
    finally:
        process.kill()
        process.communicate()
