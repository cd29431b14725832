"""The service as its clients see it: the `openai` package and curl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import soundfile

from ilme.recogniser.domain import load_domain
from ilme.recogniser.transcripts import Transcript, render
from tests.serve.conftest import KEY, Running

AUTH = {"Authorization": f"Bearer {KEY}"}
PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def expected(models: Path, wave: Path) -> Transcript:
    return load_domain(models / "sea").transcribe(wave)


def post(server: Running, wave: Path, **fields: object) -> httpx.Response:
    with wave.open("rb") as file:
        return httpx.post(f"{server.url}{PATH}", headers=AUTH, files={"file": file}, data=fields, timeout=60)


def test_the_text_is_that_of_transcribe(client: openai.OpenAI, wave: Path, expected: Transcript) -> None:
    with wave.open("rb") as file:
        found = client.audio.transcriptions.create(file=file, model="sea")
    assert found.text == expected.text and expected.text
    assert found.usage.type == "duration" and found.usage.seconds == pytest.approx(1.2)


@pytest.mark.parametrize("format", ["text", "srt", "vtt"])
def test_plain_formats_are_those_of_transcribe(
    format: str, client: openai.OpenAI, wave: Path, expected: Transcript
) -> None:
    with wave.open("rb") as file:
        found = client.audio.transcriptions.create(file=file, model="sea", response_format=format)
    assert found == render(expected, "txt" if format == "text" else format)


def test_a_verbose_answer_has_segments(client: openai.OpenAI, wave: Path, expected: Transcript) -> None:
    with wave.open("rb") as file:
        found = client.audio.transcriptions.create(
            file=file, model="sea", response_format="verbose_json", language="en", temperature=0.2, prompt="the sea"
        )
    assert found.text == expected.text and found.language == "en" and found.duration == pytest.approx(1.2)
    assert [s.text for s in found.segments] == [s.text for s in expected.segments if s.text]
    assert found.segments[0].temperature == 0.2 and found.segments[0].avg_logprob < 0
    assert found.segments[-1].end == pytest.approx(1.2)


def test_words_have_times_and_confidences(client: openai.OpenAI, wave: Path, expected: Transcript) -> None:
    with wave.open("rb") as file:
        found = client.audio.transcriptions.create(
            file=file, model="sea", response_format="verbose_json", timestamp_granularities=["word"]
        )
    assert [w.word for w in found.words] == expected.text.split() and found.segments is None
    assert all(0 <= w.start <= w.end <= 1.2 for w in found.words)
    assert all(0 < w.model_extra["confidence"] <= 1 for w in found.words)
    with wave.open("rb") as file:
        both = client.audio.transcriptions.create(
            file=file, model="sea", response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
    assert both.words == found.words and both.segments


def test_a_stream_brings_windows_as_they_are_found(client: openai.OpenAI, models: Path, long_wave: Path) -> None:
    with long_wave.open("rb") as file:
        events = list(client.audio.transcriptions.create(file=file, model="sea", stream=True))
    kinds = [e.type for e in events]
    assert kinds == ["transcript.text.delta"] * (len(events) - 1) + ["transcript.text.done"]
    assert len(events) >= 4, "3.3 s are at least three windows"
    whole = load_domain(models / "sea").transcribe(long_wave).text
    assert events[-1].text == "".join(e.delta for e in events[:-1]) == whole


def test_a_stream_ends_as_clients_expect(server: Running, wave: Path) -> None:
    found = post(server, wave, model="sea", stream="true")
    assert found.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in found.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["type"] == "transcript.text.done"


def test_models_are_the_domains(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["sea"]
    assert client.models.retrieve("sea").owned_by == "ilme"
    with pytest.raises(openai.NotFoundError, match="there are sea"):
        client.models.retrieve("desert")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "desert"}, 404, "model"),
        ({"response_format": "xml"}, 400, "response_format"),
        ({"timestamp_granularities[]": "word"}, 400, "timestamp_granularities"),
        ({"response_format": "verbose_json", "timestamp_granularities[]": "letter"}, 400, "timestamp_granularities"),
        ({"response_format": "diarized_json"}, 400, "response_format"),
        ({"response_format": "srt", "stream": "true"}, 400, "response_format"),
        ({"stream": "perhaps"}, 400, "stream"),
        ({"model": ["sea", "sea"]}, 400, "model"),
        ({"model[]": "sea"}, 400, "model"),
        ({"hotword": "whale"}, 400, "hotword"),
        ({"include[]": "logprobs"}, 400, "include"),
        ({"known_speaker_names[]": "Ahab"}, 400, "known_speaker_names"),
        ({"languages[]": ["fi", "sv"]}, 400, "language"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": "3"}, 400, "temperature"),
        ({"language": "fi"}, 400, "language"),
        ({"hotwords": "a," * 20_001}, 400, "hotwords"),
    ],
)
def test_wrong_fields_are_named(fields: dict, status: int, param: str | None, server: Running, wave: Path) -> None:
    found = post(server, wave, **fields)
    assert found.status_code == status
    error = found.json()["error"]
    assert error["param"] == param and error["message"] and error["type"] == "invalid_request_error"
    assert error["code"] == ("model_not_found" if status == 404 else None)


def test_a_mistyped_field_is_told_what_may_be_meant(server: Running, wave: Path) -> None:
    assert "is hotwords meant?" in post(server, wave, hotword="whale").json()["error"]["message"]


@pytest.mark.parametrize("field", ["model", "hotwords", "language"])
def test_a_file_in_the_place_of_text_is_refused(field: str, server: Running, wave: Path) -> None:
    files = {"file": wave.read_bytes(), field: ("a.txt", b"sea")}
    found = httpx.post(f"{server.url}{PATH}", headers=AUTH, files=files, timeout=60)
    assert found.status_code == 400 and "Too many files" in found.json()["error"]["message"]
    found = httpx.post(f"{server.url}{PATH}", headers=AUTH, files={field: ("a.txt", b"sea")}, timeout=60)
    assert found.status_code == 400 and found.json()["error"]["param"] == field


def test_every_field_of_openai_is_taken_or_refused_by_name(server: Running, wave: Path) -> None:
    """Of the client's own list, so that a new one is noticed."""
    from openai.types.audio.transcription_create_params import TranscriptionCreateParamsStreaming

    from ilme.serve.transcriptions import FIELDS, LISTS, REFUSED

    assert set(TranscriptionCreateParamsStreaming.__annotations__) <= {*FIELDS, *LISTS, *REFUSED} | set()
    found = post(server, wave, chunking_strategy="auto", **{"languages[]": ["fi", "en"]})
    assert found.status_code == 200 and found.json()["text"]


def test_translations_are_refused(client: openai.OpenAI, wave: Path) -> None:
    with pytest.raises(openai.NotFoundError, match="does not translate"), wave.open("rb") as file:
        client.audio.translations.create(file=file, model="sea")


@pytest.mark.parametrize("field", ["hotwords", "keywords[]"])
def test_hotwords_are_the_phrases_of_transcribe(field: str, server: Running, models: Path, wave: Path) -> None:
    ours = load_domain(models / "sea").transcribe(wave, phrases=["whale", "calm sea"])
    assert post(server, wave, **{field: "whale,calm sea"}).json()["text"] == ours.text


def test_silence_gives_no_text(server: Running, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(32_000, np.float32), 16_000)
    assert post(server, tmp_path / "silence.wav").json()["text"] == ""


def test_without_the_key_nothing_is_answered(server: Running, wave: Path) -> None:
    for key in ("", "wrong", KEY + "x"):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key or "none", max_retries=0)
        with pytest.raises(openai.AuthenticationError), wave.open("rb") as file:
            client.audio.transcriptions.create(file=file, model="sea")
    refused = httpx.get(f"{server.url}/metrics")
    assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    for given, status in {f"bearer {KEY}": 200, KEY: 401, f"Basic {KEY}": 401, "Bearer": 401}.items():
        assert httpx.get(f"{server.url}/v1/models", headers={"Authorization": given}).status_code == status, given
    assert httpx.head(f"{server.url}/ready").status_code == 200
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").json()["status"] == "ready"


def test_metrics_count(server: Running, wave: Path) -> None:
    def count(pattern: str) -> float:
        text = httpx.get(f"{server.url}/metrics", headers=AUTH).text
        return float((re.search(rf"^{pattern} (\S+)$", text, re.MULTILINE) or [0, 0])[1])

    asked = rf'ilme_requests_total\{{path="{PATH}",status="200"\}}'
    before = count(asked), count(r'ilme_audio_seconds_total\{model="sea"\}')
    post(server, wave)
    assert count(asked) == before[0] + 1
    assert count(r'ilme_audio_seconds_total\{model="sea"\}') == pytest.approx(before[1] + 1.2)
    assert count("ilme_requests_under_way") == 0


def test_other_sites_are_told_nothing(server: Running) -> None:
    found = httpx.get(f"{server.url}/v1/models", headers=AUTH | {"Origin": "https://elsewhere.example"})
    assert not [name for name in found.headers if name.startswith("access-control")]
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert found.headers["x-content-type-options"] == "nosniff"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Running, wave: Path, expected: Transcript) -> None:
    command = ["curl", "-sS", f"{server.url}{PATH}", "-H", f"Authorization: Bearer {KEY}", "-F", f"file=@{wave}"]
    found = subprocess.run([*command, "-F", "model=sea"], capture_output=True, check=True, timeout=60)
    assert json.loads(found.stdout)["text"] == expected.text
    asked = ["-F", "response_format=verbose_json", "-F", "timestamp_granularities[]=segment"]
    found = subprocess.run([*command, *asked], capture_output=True, check=True, timeout=60)
    assert [s["text"] for s in json.loads(found.stdout)["segments"]] == [s.text for s in expected.segments if s.text]
