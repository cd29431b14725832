"""A connection over which audio goes in and words come out, with the `openai` package and with our own client."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import openai
import pytest
import torch
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from ilme import models as networks
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.models.checkpoint import save_model
from ilme.recogniser.domain import load_domain
from ilme.recogniser.streaming import SpeechStream
from ilme.serve.app import create_app
from ilme.serve.client import at_speaking_pace, transcribe_live
from ilme.serve.guard import SUBPROTOCOL
from ilme.serve.options import ServeOptions
from ilme.serve.realtime import Session
from ilme.serve.run import jobs_of
from ilme.serve.service import Service
from ilme.workflows.transcribe import Job
from tests.checkpoints import TEXTS, noise
from tests.serve.conftest import KEY, NOISE, Running, running

EVENT = "conversation.item.input_audio_transcription"


@pytest.fixture(scope="module")
def live(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`sea`, which hears turns as a whole, and `forward`, which streams."""
    folder = tmp_path_factory.mktemp("forward")
    tokenizer = SentencePieceTokenizer.train(list(TEXTS), 32).for_role("transducer")
    torch.manual_seed(0)
    model = networks.build("rnnt", networks.preset("rnnt", "tiny"), tokenizer.tokens)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    frontend = FrontendConfig(normalisation="global", mean=(0.0,) * 80, istd=(0.2,) * 80)
    save_model(folder / "forward", model, tokenizer, frontend)
    jobs = {**jobs_of([models / "sea"]), **jobs_of([folder / "forward"])}
    running = Running(Service(jobs, NOISE, 0), key=KEY)
    yield running
    running.stop()


def spoken(live: Running, model: str, seconds: float) -> tuple[str, list[str]]:
    """The whole text, and the deltas, of noise that comes in pieces."""

    async def main() -> list[tuple[str, str]]:
        audio = at_speaking_pace(noise(seconds, 3), 16_000, pace=0.0)
        url = live.url.replace("http", "ws")
        return [found async for found in transcribe_live(url, audio, rate=16_000, model=model, key=KEY)]

    events = asyncio.run(main())
    return events[-1][1], [text for kind, text in events if kind == "delta"]


def pcm(samples: np.ndarray) -> np.ndarray:
    """As it is after 16 bits."""
    return (np.clip(np.rint(samples * 32768), -32768, 32767) / 32768).astype(np.float32)


@pytest.mark.parametrize("model", ["sea", "forward"])
def test_the_turns_text_is_that_of_the_whole(model: str, live: Running, models: Path) -> None:
    job = live.service.jobs[model]
    recogniser = load_domain(models / "sea") if model == "sea" else Job(model=job.model).load()
    text, deltas = spoken(live, model, 0.95)
    assert text == recogniser.nbest([pcm(noise(0.95, 3))])[0][0].text != ""
    assert live.service.about[model].streams is (model == "forward")
    assert "".join(deltas) == text or not text.startswith("".join(deltas))


def test_the_openai_client_understands(live: Running) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY)
    session: Any = {"type": "transcription", "audio": {"input": {"transcription": {"model": "sea"}}}}
    audio = (noise(1.2, 5) * 32767).astype("<i2").tobytes()
    with client.realtime.connect(extra_query={"intent": "transcription"}) as line:
        assert line.recv().type == "session.created"
        line.session.update(session=session)
        assert line.recv().type == "session.updated"
        line.input_audio_buffer.append(audio=base64.b64encode(audio).decode())
        line.input_audio_buffer.commit()
        kinds = []
        while not kinds or kinds[-1] != f"{EVENT}.completed":
            event = line.recv()
            kinds.append(event.type)
        assert event.transcript and event.usage.seconds == pytest.approx(1.2 * 16 / 24, abs=0.01)
        assert "input_audio_buffer.committed" in kinds


def opened(live: Running, model: str = "", **settings: Any) -> Any:
    """A connection that has been greeted."""
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{live.url.replace('http', 'ws')}/v1/realtime?intent=transcription&model={model}"
    line = connect(url, additional_headers=headers, max_size=None, **settings)
    assert hear(line)["type"] == "session.created"
    return line


def hear(line: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.recv(timeout=60))
    return found


def until(line: Any, *kinds: str) -> list[dict[str, Any]]:
    """Events up to one of these kinds."""
    found = [hear(line)]
    while found[-1]["type"] not in kinds:
        found.append(hear(line))
    return found


def say(line: Any, kind: str, **fields: Any) -> None:
    line.send(json.dumps({"type": kind, **fields}))


def append(line: Any, samples: np.ndarray) -> None:
    audio = np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()
    say(line, "input_audio_buffer.append", audio=base64.b64encode(audio).decode())


def whole_turn(line: Any, seconds: float = 0.6, seed: int = 3) -> str:
    """The text of a turn of noise, at 16 kHz, that the client ends."""
    say(line, "session.update", session={"audio": {"input": {"format": {"rate": 16_000}}}})
    append(line, noise(seconds, seed))
    say(line, "input_audio_buffer.commit")
    text: str = until(line, f"{EVENT}.completed")[-1]["transcript"]
    return text


def given(**inside: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"audio": {"input": inside}}}


ODD = {
    "binary": b"\x00\x01",
    "binary of nothing": b"",
    "no JSON": "no json",
    "nothing": "",
    "a list": "[]",
    "a number": "5",
    "deep": "[" * 300_000,
    "deep and whole": '{"type": ' + '{"a": ' * 50_000 + "1" + "}" * 50_000 + "}",
    "no type": "{}",
    "unknown": '{"type": "sing"}',
    "half a character": '{"type": "\\ud800"}',
    "a type that is an object": '{"type": {"a": 1}}',
    "cancel": '{"type": "response.cancel", "event_id": "mine"}',
    "commit of nothing": '{"type": "input_audio_buffer.commit"}',
    "no audio": '{"type": "input_audio_buffer.append"}',
    "audio that is a number": '{"type": "input_audio_buffer.append", "audio": 5}',
    "no base64": '{"type": "input_audio_buffer.append", "audio": "§"}',
    "half a sample": '{"type": "input_audio_buffer.append", "audio": "AAAA"}',
    "huge": '{"type": "input_audio_buffer.append", "audio": "' + "A" * (16 << 20) + '"}',
    "a session that is a number": '{"type": "session.update", "session": 5}',
    "audio that is a list": '{"type": "session.update", "session": {"audio": []}}',
    "unknown model": json.dumps(given(transcription={"model": "x"})),
    "model that is a number": json.dumps(given(transcription={"model": 5})),
    "another language": json.dumps(given(transcription={"language": "fr"})),
    "hotwords that are a text": json.dumps(given(transcription={"hotwords": "whale"})),
    "rate 3": json.dumps(given(format={"rate": 3})),
    "rate that is a text": json.dumps(given(format={"rate": "fast"})),
    "endless rate": '{"type": "session.update", "session": {"audio": {"input": {"format": {"rate": 1e999}}}}}',
    "rate of many digits": json.dumps(given(format={"rate": 10**400})),
    "mu-law": json.dumps(given(format={"type": "audio/pcmu"})),
    "turns that are a text": json.dumps(given(turn_detection="no")),
    "semantic turns": json.dumps(given(turn_detection={"type": "semantic_vad"})),
    "threshold 5": json.dumps(given(turn_detection={"threshold": 5})),
    "threshold NaN": '{"type": "session.update", "session": {"turn_detection": {"threshold": NaN}}}',
    "prefix of days": json.dumps(given(turn_detection={"prefix_padding_ms": 1e9})),
}


@pytest.fixture(scope="module")
def attacked(live: Running) -> Iterator[tuple[Any, Any]]:
    """One connection for all that is odd, and a neighbour in the midst of a turn."""
    with opened(live, "sea") as line, opened(live, "forward") as neighbour:
        append(neighbour, noise(0.2, 9))
        yield line, neighbour


@pytest.mark.parametrize("name", ODD)
def test_what_is_wrong_is_said_and_the_session_goes_on(name: str, attacked: tuple[Any, Any]) -> None:
    line, _ = attacked
    line.send(ODD[name])
    answer = hear(line)
    assert answer["type"] == "error" and answer["error"]["message"], answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["event_id"] == ("mine" if name == "cancel" else None)
    assert answer["error"]["code"] == ("input_audio_buffer_commit_empty" if "commit" in name else None)
    say(line, "input_audio_buffer.clear")
    assert hear(line)["type"] == "input_audio_buffer.cleared"


def test_after_all_of_it_both_are_heard(attacked: tuple[Any, Any]) -> None:
    line, neighbour = attacked
    assert whole_turn(line)
    say(neighbour, "input_audio_buffer.commit")
    assert until(neighbour, f"{EVENT}.completed")[-1]["transcript"]


def test_a_message_beyond_all_limits_ends_that_session_alone(live: Running) -> None:
    with opened(live) as neighbour:
        with opened(live) as line:
            line.send("x" * (25 << 20))
            with pytest.raises(ConnectionClosedError, match="1009"):
                line.recv(timeout=60)
        assert whole_turn(neighbour)


@pytest.mark.parametrize("model", ["sea", "forward"])
def test_a_turn_that_is_cleared_is_forgotten(model: str, live: Running) -> None:
    with opened(live, model) as line:
        append(line, noise(0.9, 1))
        say(line, "input_audio_buffer.clear")
        say(line, "input_audio_buffer.commit")
        kinds = [event["type"] for event in until(line, "error")]
        assert "input_audio_buffer.committed" not in kinds
        assert kinds[kinds.index("input_audio_buffer.cleared") + 1 :] == ["error"], "nothing of it comes later"
        assert whole_turn(line) == whole_turn(line)


@pytest.mark.parametrize("model", ["sea", "forward"])
def test_a_client_that_vanishes_leaves_nothing(model: str, live: Running) -> None:
    before = live.service.metrics.streams
    line = opened(live, model)
    append(line, noise(0.5, 2))
    line.socket.shutdown(socket.SHUT_RDWR)
    live.wait_until(lambda: live.service.metrics.streams == before)
    streams = live.service._streams
    if streams is not None:
        live.wait_until(lambda: all(not w._shelf.kept for w in streams.workers if w))


def test_a_client_that_never_answers_is_let_go(models: Path) -> None:
    quick = {"ws_ping_interval": 0.1, "ws_ping_timeout": 0.2}
    with running(models, replace(NOISE, streams=1), **quick) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            head = "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            silent.sendall(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
            live.wait_until(lambda: live.service.metrics.streams == 1)
            live.wait_until(lambda: live.service.metrics.streams == 0)


def test_a_client_that_says_nothing_is_let_go(models: Path) -> None:
    with running(models, replace(NOISE, idle=0.2)) as live, opened(live) as line:
        assert "nothing came" in hear(line)["error"]["message"]
        with pytest.raises(ConnectionClosedOK):
            line.recv(timeout=60)


def test_a_hearing_that_fails_is_said_and_done_again(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(live, "forward") as line:
        expected = whole_turn(line)
        right, failing = SpeechStream.feed, [True]

        def wrong(stream: SpeechStream, samples: np.ndarray) -> str:
            if failing:
                raise RuntimeError("a fault")
            return right(stream, samples)

        monkeypatch.setattr(SpeechStream, "feed", wrong)
        append(line, noise(0.3, 3))
        error = until(line, "error")[-1]["error"]
        assert error["type"] == "server_error" and "a fault" in error["message"]
        failing.clear()
        append(line, noise(0.6, 3)[len(noise(0.3, 3)) :])
        say(line, "input_audio_buffer.commit")
        assert until(line, f"{EVENT}.completed")[-1]["transcript"] == expected
        failing.append(True)
        append(line, noise(0.3, 3))
        say(line, "input_audio_buffer.commit")
        assert "a fault" in until(line, f"{EVENT}.failed")[-1]["error"]["message"]
        failing.clear()
        assert whole_turn(line) == expected


def test_a_turn_that_is_too_long_is_cut_and_goes_on(live: Running) -> None:
    with opened(live, "sea") as line:  # which hears windows of a second
        say(line, "session.update", session={"audio": {"input": {"format": {"rate": 16_000}}}})
        append(line, noise(3.3, 4))
        say(line, "input_audio_buffer.commit")
        say(line, "input_audio_buffer.clear")
        events = until(line, "input_audio_buffer.cleared")
    done = [event for event in events if event["type"] == f"{EVENT}.completed"]
    assert len(done) >= 4 and all(event["transcript"] for event in done)
    assert sum(event["usage"]["seconds"] for event in done) == pytest.approx(3.3, abs=0.01)
    ids = [e["item_id"] for e in events if e["type"] == "input_audio_buffer.committed"]
    assert [e["previous_item_id"] for e in events if e["type"] == "input_audio_buffer.committed"] == [None, *ids[:-1]]


def test_settings_count_from_the_next_turn_on(live: Running) -> None:
    with opened(live, "sea") as line:
        expected = whole_turn(line)
        append(line, noise(0.3, 3))
        say(line, "session.update", session={"audio": {"input": {"transcription": {"model": "forward"}}}})
        append(line, noise(0.6, 3)[len(noise(0.3, 3)) :])
        say(line, "input_audio_buffer.commit")
        assert until(line, f"{EVENT}.completed")[-1]["transcript"] == expected
    with opened(live, "forward") as other, opened(live, "sea") as line:
        say(line, "session.update", session={"audio": {"input": {"transcription": {"model": "forward"}}}})
        assert whole_turn(line) == whole_turn(other)


class Hearings:
    """A turn of which more is known after each of so many hearings; it may be over after some."""

    item, over = "item", False

    def __init__(self, left: int, over_after: int = 99) -> None:
        self.left, self.over_after, self.heard = left, over_after, 0

    @property
    def due(self) -> bool:
        return self.left > 0

    async def partial(self) -> str:
        self.left, self.heard = self.left - 1, self.heard + 1
        self.over = self.heard >= self.over_after
        return f" word {self.heard}"


@pytest.mark.parametrize(
    ("over_after", "words"), [(99, [" word 1", " word 2", " word 3"]), (2, [" word 1", " word 2"])]
)
def test_what_came_during_a_hearing_is_heard_at_once(over_after: int, words: list[str], live: Running) -> None:
    sent: list[str] = []

    class Socket:
        async def send_text(self, text: str) -> None:
            sent.append(json.loads(text)["delta"])

    session: Any = Session(Socket(), live.service, "sea")  # type: ignore[arg-type]
    session.turn = Hearings(3, over_after)
    asyncio.run(session._partial(session.turn))
    assert sent == words


def test_silence_is_no_turn_and_has_no_text(models: Path) -> None:
    with running(models, ServeOptions()) as live, opened(live) as line:
        append(line, np.zeros(24_000))
        append(line, noise(1.0, 1))
        say(line, "input_audio_buffer.commit")
        assert hear(line)["error"]["code"] == "input_audio_buffer_commit_empty"
        say(line, "session.update", session={"audio": {"input": {"turn_detection": None}}})
        append(line, noise(1.0, 1))
        say(line, "input_audio_buffer.commit")
        events = until(line, f"{EVENT}.completed")
        assert events[-1]["transcript"] == "" and not any(e["type"] == f"{EVENT}.delta" for e in events)


def test_keys_and_origins_are_looked_at(live: Running) -> None:
    url = f"{live.url.replace('http', 'ws')}/v1/realtime"
    with pytest.raises(InvalidStatus):
        connect(url)
    with pytest.raises(InvalidStatus):
        connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}, origin="https://elsewhere.example")
    for wrong in (["realtime"], ["realtime", f"{SUBPROTOCOL}other"], [quote(KEY)]):
        with pytest.raises(InvalidStatus):
            connect(url, subprotocols=[Subprotocol(name) for name in wrong])
    with connect(url, subprotocols=[Subprotocol("realtime"), Subprotocol(SUBPROTOCOL + quote(KEY))]) as line:
        assert line.subprotocol == "realtime" and hear(line)["type"] == "session.created"


def test_no_more_streams_are_taken_than_there_are_places(models: Path) -> None:
    with running(models, replace(NOISE, streams=1)) as live:
        with opened(live), connect(f"{live.url.replace('http', 'ws')}/v1/realtime") as second:
            assert "try again" in hear(second)["error"]["message"]
        live.wait_until(lambda: live.service.metrics.streams == 0)
        opened(live).close()


def test_the_application_has_the_path(models: Path) -> None:
    app = create_app(Service(jobs_of([models / "sea"]), NOISE, 0))
    assert "/v1/realtime" in {getattr(route, "path", "") for route in app.routes}
