"""Whisper on a recording of the user's own, as it is and adapted: to a text of theirs, or to the bundled domains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ilme.recogniser.domain import load_domain
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.shared_models import SharedModels
from ilme.workflows.adapt import adapt
from ilme.workflows.speech_bundle import SpeechBundle, read_speech_bundle

__all__ = ["Heard", "adapt_to_text", "hear"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Heard:
    """A recording as one recogniser hears it.

    Attributes:
        by: `Whisper`, or what it was adapted to.
        text: What it heard.
        seconds: It took.
    """

    by: str
    text: str
    seconds: float


def adapt_to_text(whisper: str, text: Sequence[str], out: Path, say: Say = lambda line: None) -> Path:
    """A domain folder in OUT from text alone: an n-gram, and the weights that are safe without dev speech.

    Args:
        whisper: The model, as `ilme.load_model` takes it.
        text: Text files or globs.
        out: Where the folder `domain` is written.
        say: Called with one line for each thing done.
    """
    adapt(whisper, text, out / "domain", lm="ngram", say=say)
    return out / "domain"


def hear(
    whisper: str, recording: Path, domain: Path | None, out: Path, bundle: SpeechBundle | None = None
) -> list[Heard]:
    """What Whisper hears as it is, and adapted.

    Args:
        whisper: The model, as `ilme.load_model` takes it.
        recording: Any audio file.
        domain: A domain folder; None takes each of the bundled domains.
        out: Where the bundled domains are unpacked.
        bundle: The one that ships with the package by default.
    """
    models = SharedModels()
    folders = {"adapted": domain} if domain is not None else _bundled(out, bundle or read_speech_bundle())
    adapted = {name: load_domain(folder, model=whisper, load=models) for name, folder in folders.items()}
    first = next(iter(adapted.values()))
    plain = Recogniser(first.model, options=first.options)
    return [_heard(name, recogniser, recording) for name, recogniser in {"Whisper": plain, **adapted}.items()]


def _bundled(out: Path, bundle: SpeechBundle) -> dict[str, Path]:
    folders = bundle.unpack(out / "speech")
    return {f"adapted to {d.title}": folders[d.name] / "domain" for d in bundle.domains}


def _heard(name: str, recogniser: Recogniser, recording: Path) -> Heard:
    began = time.perf_counter()
    text = recogniser.transcribe(recording).text
    return Heard(name, text, time.perf_counter() - began)
