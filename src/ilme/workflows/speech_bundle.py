"""Real speech that ships with the package: recordings of two domains, with their LMs, weights and names.

speech.json                     domains, dev WERs, how the recordings were chosen, hashes
calls.tar.xz, books.tar.xz      domain/: a domain folder of Whisper tiny.en; audio/: manifest.jsonl and Opus files
CREDITS.md                      whose recordings they are, under which licence, and what was changed

The model does not ship (`ilme.workflows.whisper_weights`). `make bundle-speech` makes the files from the corpora.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ilme.bundle import SPEECH
from ilme.data.utterances import Utterance, read_utterances
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.runtime.configs import config_from_json
from ilme.workflows.bundle import unpack_archive

__all__ = ["FORMAT", "METHODS", "SPEECH", "VERSION", "SpeechBundle", "SpokenDomain", "read_speech_bundle"]

FORMAT, VERSION = "ilme-speech-bundle", 1
METHODS = ("BS", "SF", "ILME", "ILME + phrases")


@dataclass(frozen=True)
class SpokenDomain:
    """Recordings of one domain, and what is known of it.

    Attributes:
        name: Of its archive.
        title: As people call it.
        credit: Whose recordings they are, and under which licence.
        sf: The weights of Shallow Fusion; those of ILME are the domain folder's.
        dev_wer: WER on dev, by method.
        about: How much text, how many n-grams, phrases and dev utterances.
    """

    name: str
    title: str
    credit: str
    sf: FusionWeights
    dev_wer: Mapping[str, float]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class SpeechBundle:
    """The description of the recordings.

    Attributes:
        folder: Where the files are.
        model: What the weights were found for, by its name on the hub.
        beam: Of the search.
        rule: How the recordings were chosen.
        domains: In the order of the report.
        files: SHA-256 of every archive.
    """

    folder: Path
    model: str
    beam: int
    rule: str
    domains: tuple[SpokenDomain, ...]
    files: Mapping[str, str]

    def unpack(self, to: Path) -> dict[str, Path]:
        """The domains as folders in `to`, by name; what is there already is kept."""
        return {
            d.name: unpack_archive(self.folder / f"{d.name}.tar.xz", to / d.name, self.files[f"{d.name}.tar.xz"])
            for d in self.domains
        }


def utterances_of(unpacked: Path) -> list[Utterance]:
    """The recordings of an unpacked domain."""
    return read_utterances(unpacked / "audio")


def read_speech_bundle(folder: Path = SPEECH) -> SpeechBundle:
    """The description of the recordings that ship with the package, or of those in another folder."""
    file = folder / "speech.json"
    if not file.is_file():
        raise CheckpointError(f"there are no recordings in {folder}; build them from the corpora: make bundle-speech")
    data = json.loads(file.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise CheckpointError(f"{file} has version {data.get('version')!r}, this ilme reads {VERSION}; build it again")
    try:
        domains = tuple(
            SpokenDomain(
                d["name"], d["title"], d["credit"], config_from_json(FusionWeights, d["sf"]), d["dev_wer"], d["about"]
            )
            for d in data["domains"]
        )
        return SpeechBundle(folder, data["model"], data["beam"], data["rule"], domains, data["files"])
    except (KeyError, TypeError) as error:
        raise BadInputError(f"{file} is damaged: {error!r}; build it again: make bundle-speech") from error
