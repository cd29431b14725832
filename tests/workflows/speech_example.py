"""A bundle of recordings for a tiny random Whisper: noises for speech, and a domain folder of a few made-up words."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ilme.recogniser.domain import load_domain
from ilme.runtime.files import file_hash
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.speech_bundle import FORMAT, VERSION, SpeechBundle, read_speech_bundle

COUNT = 3
OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, style="keep", normaliser="none")
WORDS = "w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\nw5 w6 w7\n"


def write_speech_bundle(folder: Path, model: Any) -> SpeechBundle:
    """Two domains with the same LM, and recordings of their own."""
    text, places = folder / "text.txt", folder / "domains"
    packed = folder / "speech"
    packed.mkdir(parents=True)
    text.write_text(WORDS * 5)
    for seed, name in enumerate(("calls", "books")):
        place = places / name
        adapt("tiny", [str(text)], place / "domain", phrases=["w6 w7"], options=OPTIONS, host=model)
        (place / "audio").mkdir()
        generator, lines = np.random.default_rng(seed), []
        for k in range(COUNT):
            wave = generator.normal(0, 0.1, 8000 + 1000 * k)
            soundfile.write(place / "audio" / f"{name}-{k}.wav", wave, 16_000)
            row = {"audio_filepath": f"{name}-{k}.wav", "duration": len(wave) / 16_000, "speaker": f"s{k}"}
            lines.append(json.dumps({**row, "text": "w5 w6 w7"}))
        (place / "audio" / "manifest.jsonl").write_text("\n".join(lines) + "\n")
        with tarfile.open(packed / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(place, ".")
        assert load_domain(place / "domain").weights.phrases > 0
    rates = {"BS": 30.0, "SF": 20.0, "ILME": 15.0, "ILME + phrases": 14.0}
    domains = [
        {
            "name": name,
            "title": title,
            "credit": f"whoever made {name}",
            "sf": {"lm": 0.1},
            "dev_wer": rates,
            "about": {},
        }
        for name, title in (("calls", "bank calls"), ("books", "audiobooks"))
    ]
    files = {p.name: file_hash(p) for p in packed.glob("*.tar.xz")}
    data = {"format": FORMAT, "version": VERSION, "model": "tiny", "beam": 3, "rule": "drawn", "domains": domains}
    (packed / "speech.json").write_text(json.dumps({**data, "files": files}))
    return read_speech_bundle(packed)


@contextmanager
def tiny_everywhere() -> Iterator[Any]:
    """Every model that is loaded by name is the same tiny Whisper, whose words have no case."""
    from tests.adapters.tiny import tiny_whisper

    model = tiny_whisper()
    with pytest.MonkeyPatch.context() as patch:
        for place in ("recogniser.domain", "recogniser.shared_models", "workflows.adapt"):
            patch.setattr(f"ilme.{place}.load_model", lambda *a, **k: model)
        patch.setattr("ilme.data.written_style.needs_recasing", lambda lines: False)
        patch.setattr("ilme.lm.phrase_list.spoken", lambda text: text)  # which would spell the digits out
        yield model
