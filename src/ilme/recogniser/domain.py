"""A domain folder: a model by reference, with the LM, the internal LM, the weights and the search of one domain.

domain.json             the card: model, weights, search, what was measured, a hash of every file
lm.safetensors          the domain's LM, if it was trained for the folder
internal.safetensors    what takes the place of the acoustics in the model's internal LM
card.md, tuning.json    for people, and for `ilme report`

recogniser = ilme.load_domain("my-domain")
print(recogniser.transcribe("visit.flac").text)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ilme.errors import CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm.files import load_internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.protocols import TokenScorer
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import TRANSFORMER, Options, default_options, options_from_json, options_to_json
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import file_hash, write_atomically
from ilme.runtime.formats import Format

__all__ = ["CARD", "INTERNAL", "LM", "Domain", "load_domain"]

FORMAT, VERSION = "ilme-domain", 2
CARD, LM, INTERNAL = "domain.json", "lm.safetensors", "internal.safetensors"


@dataclass(frozen=True)
class Domain:
    """What a domain folder says about itself.

    Attributes:
        model: The model, as `ilme.load_model` takes it.
        model_options: Language, task, prompt and the like.
        kind: The model's kind, such as `whisper` or `rnnt`; empty if the folder does not say.
        weights: The fusion weights; all 0 if tuning found no gain.
        internal: How the internal LM was estimated; empty if none is subtracted.
        search: How to search; None as the model's family is searched.
        lm: The LM's file in the folder, or its name elsewhere; empty if none is used.
        style: How the LM reads the model's tokens: `fold` passes over case and punctuation, all else as they are.
        report: Dev results, text statistics, time, versions.
        files: SHA-256 of the folder's other files.
    """

    model: str
    model_options: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    weights: FusionWeights = field(default_factory=FusionWeights)
    internal: str = ""
    search: Options | None = None
    lm: str = LM
    style: str = "restore"
    report: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> Domain:
        """Writes the card, with the hashes of the LM and the internal LM that lie in the folder."""
        named = [name for name in dict.fromkeys((self.lm, INTERNAL)) if _names_own(folder, name)]
        whole = replace(self, files={name: file_hash(folder / name) for name in named})
        data = {"format": FORMAT, "version": VERSION, **asdict(whole)}
        data["search"] = None if self.search is None else options_to_json(self.search)
        write_atomically(folder / CARD, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
        return whole

    @classmethod
    def read(cls, folder: Path) -> Domain:
        """Reads a card of this version or of version 1."""
        file = folder / CARD
        if not file.is_file():
            raise CheckpointError(f"{folder} is no domain folder: it has no {CARD}; `ilme adapt` writes one")
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{file} is not JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") not in (1, VERSION):
            found = data if isinstance(data, dict) else {}
            raise CheckpointError(
                f"{file} has format {found.get('format')!r}, version {found.get('version')!r}; "
                f"this version of ilme reads {FORMAT} {VERSION}: run `ilme adapt` again"
            )
        try:
            return cls._of(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{file} is damaged: {error}; run `ilme adapt` again") from error

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Domain:
        search = data["search"]
        if data["version"] == 1:  # there the length of the audio always counted
            guards = {"labels_per_second": TRANSFORMER.labels_per_second, "plausible_length": True}
            search = {**search, **guards}
        return cls(
            model=data["model"],
            model_options=dict(data["model_options"]),
            kind=data.get("kind", ""),
            weights=FusionWeights(**data["weights"]),
            internal=data["internal"],
            search=None if search is None else options_from_json(search),
            lm=data["lm"],
            style=data.get("style", "restore"),  # the first folders had no choice
            report=dict(data["report"]),
            files=dict(data.get("files", {})),
        )

    def check_files(self, folder: Path) -> None:
        """Every file of the folder is the one that the card was written for."""
        for name, digest in self.files.items():
            path = _inside(folder, name)
            if not path.is_file():
                raise CheckpointError(f"{folder} lacks {name}; copy the whole folder, or run `ilme adapt` again")
            if file_hash(path) != digest:
                raise CheckpointError(f"{path} is not the file that {CARD} was written for; run `ilme adapt` again")


def load_domain(
    folder: str | Path,
    *,
    model: str = "",
    device: str = "cpu",
    format: Format = "float32",
    timestamps: bool = False,
) -> Recogniser:
    """Loads a domain folder, ready to transcribe.

    Args:
        folder: What `ilme adapt` wrote.
        model: Where the model is now, if it has moved.
        device: Where everything runs.
        format: Of the weights on a CPU: float32, bfloat16 or int8.
        timestamps: Let Whisper write time stamps, so that segments are as long as sentences, not as windows.
    """
    folder = Path(folder)
    domain = Domain.read(folder)
    domain.check_files(folder)
    options = domain.model_options | ({"timestamps": True} if timestamps else {})
    host = load_model(model or _model_path(folder, domain.model), device, **options)
    if domain.kind and domain.kind != host.kind:
        raise CheckpointError(f"{folder} was made for a model of kind {domain.kind!r}, and this is a {host.kind!r}")
    lm, internal = _scorers(folder, domain, host)
    recogniser = Recogniser(
        host, lm=lm, subtracted=internal, weights=domain.weights, options=domain.search or default_options(host)
    )
    return recogniser.pack(format) if host.device.type == "cpu" else recogniser


def _scorers(folder: Path, domain: Domain, host: Any) -> tuple[TokenScorer | None, TokenScorer | None]:
    lm: TokenScorer | None = None
    internal: TokenScorer | None = None
    if domain.weights.lm:
        lm = load_lm(_inside(folder, domain.lm) if _names_own(folder, domain.lm) else domain.lm, host)
    if domain.weights.subtracted:
        internal = load_internal_lm(folder / INTERNAL, host, domain.internal)
    if domain.style == "fold":
        folds = Folds(host.tokens, host.device)
        lm = None if lm is None else FoldedScorer(lm, folds)
        internal = None if internal is None else fold_internal(internal, folds)
    return lm, internal


def _model_path(folder: Path, name: str) -> str:
    """The model where the card says, from the folder if it is not there from here."""
    beside = folder / name
    return str(beside) if not Path(name).exists() and beside.exists() else name


def _names_own(folder: Path, name: str) -> bool:
    """Whether the card means a file of the folder; a path in full is an LM that lies elsewhere."""
    return bool(name) and not Path(name).is_absolute() and (folder / name).is_file()


def _inside(folder: Path, name: str) -> Path:
    """A file that the card names, which must lie in the folder."""
    path = folder / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / CARD} names {name}, which is not inside the folder; run `ilme adapt` again")
    return path
