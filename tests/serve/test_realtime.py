"""A connection over which audio goes in and words come out, with the `openai` package and with our own client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ilme import models as networks
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.models.checkpoint import save_model
from ilme.recogniser.domain import load_domain
from ilme.serve.app import create_app
from ilme.serve.client import at_speaking_pace, transcribe_live
from ilme.serve.realtime import Agreement
from ilme.serve.run import jobs_of
from ilme.serve.service import Service
from ilme.workflows.transcribe import Job
from tests.checkpoints import TEXTS, noise
from tests.serve.conftest import KEY, NOISE, Running

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
    running = Running(Service(jobs, replace(NOISE, streams=2), 0), key=KEY)
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


def test_what_is_wrong_is_said_and_the_session_goes_on(live: Running) -> None:
    url = f"{live.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    headers = {"Authorization": f"Bearer {KEY}"}
    with connect(url, additional_headers=headers) as line:
        assert json.loads(line.recv())["type"] == "session.created"
        wrong = ["no json", "[]", '{"type": "sing"}', '{"type": "input_audio_buffer.append", "audio": "§"}']
        wrong.append('{"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "x"}}}}}')
        wrong.append('{"type": "session.update", "session": {"audio": {"input": {"format": {"rate": 3}}}}}')
        for message in wrong:
            line.send(message)
            assert json.loads(line.recv())["type"] == "error", message
        line.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(line.recv())["type"] == "input_audio_buffer.cleared"


def test_keys_origins_and_numbers_are_looked_at(live: Running) -> None:
    url = f"{live.url.replace('http', 'ws')}/v1/realtime"
    headers = {"Authorization": f"Bearer {KEY}"}
    with pytest.raises(InvalidStatus):
        connect(url)
    with pytest.raises(InvalidStatus):
        connect(url, additional_headers=headers, origin="https://elsewhere.example")
    with (
        connect(url, additional_headers=headers) as one,
        connect(url, additional_headers=headers) as two,
        connect(url, additional_headers=headers) as three,
    ):
        assert [json.loads(line.recv())["type"] for line in (one, two, three)] == ["session.created"] * 2 + ["error"]
    live.wait_until(lambda: live.service.metrics.streams == 0)


def test_only_what_two_hearings_agree_on_is_sent() -> None:
    agreement = Agreement()
    heard = [
        "the",
        "the whale",
        "the whale swam",
        "the sail swam off",
        "the whale swam off to",
        "the whale swam off to",
    ]
    assert [agreement.add(text) for text in heard] == ["", "the", " whale", "", "", " swam off to"]


def test_the_application_has_the_path(models: Path) -> None:
    app = create_app(Service(jobs_of([models / "sea"]), NOISE, 0))
    assert "/v1/realtime" in {getattr(route, "path", "") for route in app.routes}
