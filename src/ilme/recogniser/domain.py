"""A domain folder: a model by reference, with the LM, the internal LM, the weights and the search of one domain.

domain.json             the card: model, weights, search, what was measured, a hash of every file
lm.safetensors          the domain's LM, if it was trained for the folder
internal.safetensors    what takes the place of the acoustics in the model's internal LM
phrases.txt             names and terms that may be said, if any were listed
card.md, tuning.json    for people, and for `ilme report`

recogniser = ilme.load_domain("my-domain")
print(recogniser.transcribe("visit.flac").text)

A folder may come from somebody else, so all that its card says is checked, and the LM and the byte-pair ranks that it
names lie in the folder, unless the caller names them. The model is by reference: it may be anywhere, or a hub id.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ilme import bundle
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm.files import load_internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.lm.mixing import is_mixture, read_mixture
from ilme.lm.phrase_list import read_phrases
from ilme.protocols import TokenScorer
from ilme.recogniser.confidence import WordConfidence
from ilme.recogniser.loading import LoadModel, load_lm, load_model
from ilme.recogniser.options import TRANSFORMER, Options, default_options, options_from_json, options_to_json
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.configs import config_from_json, read_json_object
from ilme.runtime.files import file_hash, write_atomically
from ilme.runtime.formats import Format

__all__ = ["CARD", "INTERNAL_LM", "LM", "PHRASES", "Domain", "load_domain", "model_of"]

FORMAT, VERSION = "ilme-domain", 2
CARD, LM, INTERNAL_LM, PHRASES = "domain.json", "lm.safetensors", "internal.safetensors", "phrases.txt"
STYLES = ("restore", "fold", "keep", "spoken")
FOR_PEOPLE = ("card.md", "tuning.json")  # which nothing is loaded from
WAYS = (  # to an internal LM
    "",
    *("removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned", "vector"),
    *("frame-prior", "distilled"),
)
ALWAYS = ("lm", "subtracted", "length")  # weights that every card has
LATER = ("kind", "style", "files", "confidence")
LONGEST_NAME = 255  # bytes of one part of a path, on any file system


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
        lm: The LM's file in the folder, or its name elsewhere, which must be given again when the folder is loaded;
            empty if none is used.
        style: How the LM reads the model's tokens: `fold` passes over case and punctuation, all else as they are.
        confidence: How sure a word is, where dev has taught it.
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
    confidence: WordConfidence | None = None
    report: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> Domain:
        """Writes the card, with the hashes of all files in the folder that loading it reads."""
        inside = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        whole = replace(self, files={n: file_hash(folder / n) for n in inside if n not in (CARD, *FOR_PEOPLE)})
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
            data = read_json_object(file)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; run `ilme adapt` again") from error
        version = data.get("version")
        if data.get("format") != FORMAT or isinstance(version, bool) or version not in (1, VERSION):
            found = str(data.get("format"))[:40], str(version)[:20]
            raise CheckpointError(
                f"{file} has format {found[0]!r}, version {found[1]}; "
                f"this version of ilme reads {FORMAT} {VERSION}: run `ilme adapt` again"
            )
        try:
            return cls._of(data)
        except (BadInputError, KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(f"{file} is damaged: {what}; run `ilme adapt` again") from error

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Domain:
        search = data["search"]
        if data["version"] == 1:  # there the length of the audio always counted
            guards = {"labels_per_second": TRANSFORMER.labels_per_second, "plausible_length": True}
            search = {**search, **guards}
        given = {name: data[name] for name in ("model", "model_options", "internal", "lm", "report")}
        later = {name: data[name] for name in LATER if name in data}  # the first folders had none
        domain = config_from_json(cls, given | later)
        weights = config_from_json(FusionWeights, data["weights"])
        if absent := [name for name in ALWAYS if name not in data["weights"]]:
            raise BadInputError(f"weights holds no {absent[0]}")
        domain = replace(domain, weights=weights, search=None if search is None else options_from_json(search))
        domain._check()
        return domain

    def _check(self) -> None:
        """Every text is one of those that are known, or can be a name."""
        if not self.model or "\0" in self.model:
            raise BadInputError("it names no model")
        if self.style not in STYLES:
            raise BadInputError(f"style must be one of {', '.join(STYLES)}, got {self.style[:40]!r}")
        if self.internal not in WAYS:
            raise BadInputError(f"no internal LM is called {self.internal[:40]!r}; there are {', '.join(WAYS[1:])}")
        if (self.weights.lm and not self.lm) or (self.weights.subtracted and not self.internal):
            raise BadInputError("it gives a weight to an LM that it does not name")
        if self.weights.phrases and PHRASES not in self.files:
            raise BadInputError(f"it gives a weight to phrases and has no {PHRASES}")
        for name in (self.lm, *self.files):
            if "\0" in name or any(len(part.encode()) > LONGEST_NAME for part in Path(name).parts):
                raise BadInputError("it names a file that cannot be one")
        for name, digest in self.files.items():
            if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
                raise BadInputError(f"files holds no SHA-256 for {name}")
        for name, value in self.model_options.items():
            if name in ("name", "device", "dtype") or not isinstance(value, str | bool | int | float):
                raise BadInputError(f"model_options.{name[:40]} is no option of a model")

    def check_files(self, folder: Path) -> None:
        """Every file of the folder is the one that the card was written for."""
        for name, digest in self.files.items():
            path = _inside(folder, name)
            if not path.is_file():
                raise CheckpointError(f"{folder} lacks {name}; copy the whole folder, or run `ilme adapt` again")
            if file_hash(path) != digest:
                raise CheckpointError(f"{path} is not the file that {CARD} was written for; run `ilme adapt` again")
        used = {LM: self.weights.lm and self.lm == LM, INTERNAL_LM: self.weights.subtracted}
        for name in [name for name, read in used.items() if read and self.files and name not in self.files]:
            raise CheckpointError(f"{folder / CARD} holds no hash of {name}; run `ilme adapt` again")


def load_domain(
    folder: str | Path,
    *,
    model: str = "",
    lm: str | Path = "",
    ranks: str | Path = "",
    device: str = "cpu",
    format: Format = "float32",
    timestamps: bool = False,
    load: LoadModel | None = None,
) -> Recogniser:
    """Loads a domain folder, ready to transcribe.

    Args:
        folder: What `ilme adapt` wrote.
        model: Where the model is now, if it has moved.
        lm: The LM, if it does not lie in the folder, or another is to be used.
        ranks: The .tiktoken file of an OpenAI .pt, if the card names one that does not lie in the folder.
        device: Where everything runs.
        format: Format of the weights on a CPU: float32, float16, bfloat16 or int8.
        timestamps: Let Whisper write time stamps, so that segments are as long as sentences, not as windows.
        load: Loads the model as `load_model` does; a `SharedModels` for domains that are to share weights in memory.
    """
    folder = Path(folder)
    domain = Domain.read(folder)
    domain.check_files(folder)
    name, options = model_of(folder, domain, model, ranks)
    lm = lm or (_own_lm(folder, domain.lm) if domain.weights.lm else "")
    host = (load or load_model)(name, device, **options | ({"timestamps": True} if timestamps else {}))
    if domain.kind and domain.kind != host.kind:
        raise CheckpointError(f"{folder} was made for a model of kind {domain.kind!r}, and this is a {host.kind!r}")
    scorer, internal = _scorers(folder, domain, lm, host)
    recogniser = Recogniser(
        host,
        lm=scorer,
        subtracted=internal,
        phrases=read_phrases(_inside(folder, PHRASES)) if domain.weights.phrases else (),
        weights=domain.weights,
        options=domain.search or default_options(host),
        confidence=domain.confidence,
    )
    return recogniser.pack(format) if host.device.type == "cpu" else recogniser


def model_of(folder: Path, domain: Domain, model: str = "", ranks: str | Path = "") -> tuple[str, dict[str, Any]]:
    """The model of a domain folder and its options, as `load_model` takes them from here.

    Args:
        folder: The domain's.
        domain: Its card.
        model: Where the model is now, if it has moved.
        ranks: The .tiktoken file, if the card names one that does not lie in the folder.
    """
    options = dict(domain.model_options)
    if ranks or "ranks" in options:
        options["ranks"] = str(ranks or _own(folder, str(options["ranks"]), "ranks"))
    return model or _model_path(folder, domain.model), options


def _scorers(
    folder: Path, domain: Domain, name: str | Path, host: Any
) -> tuple[TokenScorer | None, TokenScorer | None]:
    lm: TokenScorer | None = None
    internal: TokenScorer | None = None
    if domain.weights.lm:
        lm = load_lm(name, host)
    if domain.weights.subtracted:
        made = load_internal_lm(_inside(folder, INTERNAL_LM), host, domain.internal)
        if made.how != domain.internal:
            raise CheckpointError(
                f"{folder / CARD} names the internal LM {domain.internal!r}, and {INTERNAL_LM} is {made.how!r}; run "
                "`ilme adapt` again"
            )
        internal = made
    if domain.style == "fold":
        folds = Folds(host.tokens, host.device)
        lm = None if lm is None else FoldedScorer(lm, folds)
        internal = None if internal is None else fold_internal(internal, folds)
    return lm, internal


def _model_path(folder: Path, name: str) -> str:
    """The model where the card says, from the folder if it is not there from here."""
    try:
        beside = folder / name
        return str(beside) if not Path(name).exists() and beside.exists() else name
    except OSError as error:
        raise CheckpointError(f"{folder / CARD} names a model that cannot be one: {error.strerror}") from error


def _own_lm(folder: Path, name: str) -> str | Path:
    """The LM that the card names, which must be ours or lie in the folder, and so must what it mixes."""
    if name.startswith(bundle.PREFIX):
        return name
    path = _own(folder, name, "lm")
    if is_mixture(path):
        for part in read_mixture(path).files:
            if not part.resolve().is_relative_to(folder.resolve()):
                raise CheckpointError(f"{path} mixes {part}, which is not inside the folder; name the LM itself: lm=…")
    return path


def _own(folder: Path, name: str, what: str) -> Path:
    """A file of the folder that the card names; one elsewhere must be named by the caller."""
    try:
        return _inside(folder, name)
    except CheckpointError:
        raise CheckpointError(
            f"{folder / CARD} names {name} as {what}, which is not inside the folder; if you trust it, name it "
            f"yourself: {what}={name!r}"
        ) from None


def _inside(folder: Path, name: str) -> Path:
    """A file that the card names, which must lie in the folder."""
    path = folder / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / CARD} names {name}, which is not inside the folder; run `ilme adapt` again")
    return path
