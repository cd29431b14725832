"""What is in the bundle, and how it is laid out for use.

bundle.json                            what there is: systems with their weights and results, search options, hashes
rnnt, aed, lm, source_lm .safetensors  the networks in 8 bits, tokenizer and frontend inside
rnnt-ilm, aed-ilm .safetensors         internal LMs learned from text (ILME-learned)
dev.tar.xz, test.tar.xz                manifest.jsonl and Opus files
card.md                                data, licences, training, results
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ilme.bundle import FOLDER
from ilme.data.utterances import Utterance, read_utterances
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.recogniser.loading import Parts, parts_for
from ilme.recogniser.options import Options, options_from_json
from ilme.runtime.files import file_hash, replace_folder, write_text
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions

__all__ = ["FOLDER", "Bundle", "BundledSystem", "Unpacked", "read_bundle", "unpack_archive"]

FORMAT, VERSION = "ilme-bundle", 1
NETWORKS = ("rnnt", "aed", "lm", "source_lm")
LEARNED = {"rnnt": "rnnt-ilm.safetensors", "aed": "aed-ilm.safetensors"}
SETS = ("dev", "test")
FILES = ("bundle.json", "card.md", *(f"{name}.safetensors" for name in NETWORKS), *LEARNED.values(),
         *(f"{name}.tar.xz" for name in SETS))  # fmt: skip


@dataclass(frozen=True)
class BundledSystem:
    """One model with one method, the weights that dev chose, and what was measured with them when it was bundled."""

    model: str
    method: str
    weights: FusionWeights
    dev_wer: float
    test_wer: float


@dataclass(frozen=True)
class Bundle:
    """The bundle's description.

    Attributes:
        folder: Where its files are.
        beam: Beam of the search.
        transducer: Search options of the RNN-T.
        attention: Search options of the AED.
        systems: In the order of the tables.
        check: Utterances and word errors of a quick check: {"ids": […], "errors": {"rnnt ILME": n, …}, "words": n}.
        files: SHA-256 of every file.
        study: Where it came from: name, commit, seed, command.
    """

    folder: Path
    beam: int
    transducer: TransducerOptions
    attention: AttentionOptions
    systems: tuple[BundledSystem, ...]
    check: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)

    def unpack(self, to: Path) -> Unpacked:
        """Recordings as files, in a folder; what is there already is kept. Networks are read where they are."""
        for name in (*(f"{network}.safetensors" for network in NETWORKS), *sorted(LEARNED.values())):
            if name in self.files:
                self._check(self.folder / name)
        for name in SETS:
            unpack_archive(self.folder / f"{name}.tar.xz", to / "audio" / name, self.files[f"{name}.tar.xz"])
        return Unpacked(self, to)

    def _check(self, file: Path) -> None:
        _check_file(file, self.files[file.name])


@dataclass(frozen=True)
class Unpacked:
    """A bundle laid out in a folder.

    Attributes:
        bundle: Its description.
        folder: Where it lies.
    """

    bundle: Bundle
    folder: Path

    def parts(self, model: str, method: str) -> Parts:
        """The files of one system: the method decides what is subtracted."""
        networks = self.bundle.folder
        return parts_for(
            method,
            str(networks / f"{model}.safetensors"),
            str(networks / "lm.safetensors"),
            source_lm=str(networks / "source_lm.safetensors"),
            learned=str(networks / LEARNED[model]),
        )

    def search(self, model: str) -> Options:
        """How the model is searched."""
        return self.bundle.transducer if model == "rnnt" else self.bundle.attention

    def utterances(self, part: str) -> list[Utterance]:
        return read_utterances(self.folder / "audio" / part)


def read_bundle(folder: Path = FOLDER) -> Bundle:
    """The description of the bundle that ships with the package, or of one in another folder."""
    file = folder / "bundle.json"
    if not file.is_file():
        raise CheckpointError(f"there is no bundle in {folder}; build it from a study's outputs: make bundle")
    data = json.loads(file.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise CheckpointError(f"{file} has version {data.get('version')!r}, this ilme reads {VERSION}; build it again")
    try:
        return Bundle(
            folder=folder,
            beam=data["beam"],
            transducer=cast(TransducerOptions, options_from_json({"kind": "transducer", **data["transducer"]})),
            attention=cast(AttentionOptions, options_from_json(data["attention"])),
            systems=tuple(_system(row) for row in data["systems"]),
            check=data["check"],
            files=data["files"],
            study=data["study"],
        )
    except (KeyError, TypeError) as error:
        raise BadInputError(f"{file} is damaged: {error!r}; build it again: make bundle") from error


def _system(row: dict[str, Any]) -> BundledSystem:
    weights = FusionWeights(row["lambda_t"], row["mu"], row["length_reward"], row.get("background", 0.0))
    return BundledSystem(row["model"], row["method"], weights, row["dev_wer"], row["test_wer"])


def unpack_archive(packed: Path, plain: Path, digest: str) -> Path:
    """The content of an archive with this SHA-256 as a folder; one that was made from it already is kept."""
    if not _made_from(plain, digest):
        _check_file(packed, digest)
        with tarfile.open(packed) as archive, replace_folder(plain) as fresh:
            archive.extractall(fresh, filter="data")
        _note(plain, digest)
    return plain


def _check_file(file: Path, digest: str) -> None:
    if not file.is_file():
        raise CheckpointError(f"the bundle lacks {file.name}; install the package again, or build it: make bundle")
    if file_hash(file) != digest:
        raise CheckpointError(f"{file} is damaged: its hash is not the bundle's; install the package again")


def _made_from(plain: Path, digest: str) -> bool:
    note = plain.with_name(f"{plain.name}.from")
    return plain.exists() and note.is_file() and note.read_text() == digest


def _note(plain: Path, digest: str) -> None:
    write_text(plain.with_name(f"{plain.name}.from"), digest)
