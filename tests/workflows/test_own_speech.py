"""A recording of the user's own, before and after a text of theirs, on a tiny random Whisper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ilme.recogniser.domain import load_domain
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows.own_speech import adapt_to_text, hear
from tests.workflows.speech_example import WORDS, tiny_everywhere, write_speech_bundle


@pytest.fixture(scope="module")
def tiny() -> Iterator[Any]:
    pytest.importorskip("transformers")
    with tiny_everywhere() as model:
        yield model


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 8000), 16_000)
    return tmp_path / "a.wav"


def test_before_and_after_a_text(tiny: Any, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.txt").write_text(WORDS * 5)
    said: list[str] = []
    monkeypatch.setattr("ilme.workflows.adapt.style_for", lambda host, style: "keep")
    domain = adapt_to_text("tiny", [str(tmp_path / "my.txt")], tmp_path / "out", said.append)
    assert domain == tmp_path / "out" / "domain" and any("no dev speech" in line for line in said)
    before, after = hear("tiny", recording, domain, tmp_path / "out")
    adapted = load_domain(domain)
    assert adapted.weights.lm > 0 and adapted.weights.subtracted > 0
    assert (before.by, after.by) == ("Whisper", "adapted")
    assert before.text == Recogniser(tiny, options=adapted.options).transcribe(recording).text
    assert after.text == adapted.transcribe(recording).text


def test_without_a_text_the_bundled_domains_hear_it(tiny: Any, recording: Path, tmp_path: Path) -> None:
    bundle = write_speech_bundle(tmp_path / "bundle", tiny)
    heard = hear("tiny", recording, None, tmp_path / "out", bundle)
    assert [h.by for h in heard] == ["Whisper", "adapted to bank calls", "adapted to audiobooks"]
    assert heard[1].text == load_domain(tmp_path / "out" / "speech" / "calls" / "domain").transcribe(recording).text
