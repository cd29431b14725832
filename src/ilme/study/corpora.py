"""Recorded speech of a study: which corpora, which of their utterances, and where their files lie."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ilme.data.normalise import spoken
from ilme.errors import BadInputError

__all__ = [
    "CorpusPart",
    "RecordingsPlan",
    "Row",
    "audio_of",
    "find_file",
    "manifest_of",
    "rows_of",
    "synthetic_study",
    "training_rows",
]


@dataclass(frozen=True)
class CorpusPart:
    """Some utterances of a corpus.

    Attributes:
        corpus: Its folder's name; the folder holds manifest.jsonl (`audio_filepath`, `text`, `duration`, and where
            known `speaker`, `split`, `call`) and the audio.
        split: Only utterances whose `split` is this; empty takes all.
        most: At most so many, drawn by the study's seed; 0 takes all.
        longest: Only utterances of at most so many seconds; 0 takes all. A search of a set takes as long as its longest
            utterance does.
    """

    corpus: str = ""
    split: str = ""
    most: int = 0
    longest: float = 0.0


@dataclass(frozen=True)
class RecordingsPlan:
    """Recordings instead of synthetic speech. A plan without `train` is none: the study speaks its text itself.

    Attributes:
        roots: Folders that are looked through, in this order, for corpora, texts (text/NAME/train.txt, or .xz) and
            `whisper`.
        train: Speech of the source domain that both networks learn.
        held_out: Source speech on which their loss is watched; its transcripts stop the source LM early.
        sets: `target-dev` and `target-test`, and the same of every further target domain.
        texts: Further target domains whose LM learns a corpus's transcripts, by name. A tenth of the calls (or of the
            utterances, where there are no calls) is held out.
        shortest: Seconds of a training utterance at least.
        longest: Seconds of a training utterance at most.
        speeds: Copies of the training speech at these speeds; pitch changes along.
        telephone: Whether another copy has nothing above 4 kHz, as on the telephone.
        joined: Another copy whose utterances are several in a row, of up to so many seconds, so that networks also meet
            long ones; 0 makes none.
        noise: Fields of ResidentNoise: what is mixed into the training speech.
        piece: Target text is cut into pieces of at most so many words: consecutive sentences are joined until a drawn
            length is reached. 0 keeps one sentence to a line.
        whisper: Weights that Whisper layers of the encoders start from; empty starts from fresh ones.
        synthetic: Folder, in one of the roots, of another study whose synthetic training speech is learnt too; its
            sentences are source text then. Empty: recordings alone.
        workers: Threads that decode audio; 0 takes one for each core.
    """

    roots: tuple[str, ...] = ()
    train: CorpusPart = field(default_factory=CorpusPart)
    held_out: CorpusPart = field(default_factory=CorpusPart)
    sets: dict[str, CorpusPart] = field(default_factory=dict)
    texts: dict[str, CorpusPart] = field(default_factory=dict)
    shortest: float = 0.5
    longest: float = 20.0
    speeds: tuple[float, ...] = (1.0,)
    telephone: bool = False
    joined: float = 0.0
    noise: dict[str, Any] = field(default_factory=dict)
    piece: int = 0
    whisper: str = ""
    synthetic: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("sets", "texts"):
            parts = {k: CorpusPart(**v) if isinstance(v, dict) else v for k, v in getattr(self, name).items()}
            object.__setattr__(self, name, parts)
        if not self.active:
            return
        for domain in self.domains:
            for part in (f"{domain}-dev", f"{domain}-test"):
                if part not in self.sets:
                    raise BadInputError(f"recordings.sets has no {part}: each target domain needs a dev and a test set")
        if not self.speeds or not all(0.5 <= s <= 2.0 for s in self.speeds):
            raise BadInputError(f"recordings.speeds={list(self.speeds)} must be factors between 0.5 and 2")

    @property
    def active(self) -> bool:
        return bool(self.train.corpus)

    @property
    def domains(self) -> tuple[str, ...]:
        """The target domains."""
        return ("target", *self.texts)


@dataclass(frozen=True)
class Row:
    """One utterance of a manifest, its text in the spoken form.

    Attributes:
        id: The audio file's name, without its ending.
        audio: The file, inside its corpus.
        text: What is said.
        speaker: By whom.
        seconds: How long it is.
        group: The call it belongs to; its own id where there are none.
    """

    id: str
    audio: str
    text: str
    speaker: str
    seconds: float
    group: str


def find_file(plan: RecordingsPlan, *names: str) -> Path:
    """The first of these files that a root holds."""
    for root in plan.roots:
        for name in names:
            if (Path(root) / name).is_file():
                return Path(root) / name
    roots = ", ".join(plan.roots) or "(recordings.roots is empty)"
    raise BadInputError(
        f"none of the folders {roots} holds {' or '.join(names)}; add the folder that does to recordings.roots"
    )


def manifest_of(plan: RecordingsPlan, part: CorpusPart) -> Path:
    return find_file(plan, f"{part.corpus}/manifest.jsonl")


def audio_of(plan: RecordingsPlan, part: CorpusPart, row: Row) -> Path:
    return find_file(plan, f"{part.corpus}/{row.audio}")


def rows_of(plan: RecordingsPlan, part: CorpusPart, seed: int) -> list[Row]:
    """The utterances of a part that have text, in the manifest's order."""
    path = manifest_of(plan, part)
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
                if part.split and data.get("split") != part.split:
                    continue
                rows.append(_row(data))
            except (ValueError, KeyError, TypeError) as error:
                raise BadInputError(
                    f"{path}, line {number}: an utterance has audio_filepath, text and duration, not {error!r}"
                ) from error
    rows = [row for row in rows if row.text and (not part.longest or row.seconds <= part.longest)]
    if not rows:
        split = f" in split {part.split}" if part.split else ""
        length = f" of at most {part.longest:g} s" if part.longest else ""
        raise BadInputError(f"{path} has no utterance with text{split}{length}")
    if part.most and part.most < len(rows):
        places = Random(f"{seed}/{part.corpus}/{part.split}").sample(range(len(rows)), part.most)
        rows = [rows[i] for i in sorted(places)]
    return rows


def synthetic_study(plan: RecordingsPlan) -> Path | None:
    """The folder of the study that speaks for this one; None: there is none."""
    return find_file(plan, f"{plan.synthetic}/text/spoken.txt").parent.parent if plan.synthetic else None


def training_rows(plan: RecordingsPlan, seed: int) -> list[Row]:
    """The training speech: of a length that networks learn well from."""
    rows = [row for row in rows_of(plan, plan.train, seed) if plan.shortest <= row.seconds <= plan.longest]
    if not rows:
        raise BadInputError(
            f"{plan.train.corpus} has no training utterance of {plan.shortest:g} to {plan.longest:g} s; change "
            "recordings.shortest or recordings.longest"
        )
    return rows


def _row(data: dict[str, Any]) -> Row:
    audio = str(data["audio_filepath"])
    name = Path(audio).with_suffix("").name
    speaker, group = str(data.get("speaker", "")), str(data.get("call", name))
    return Row(name, audio, spoken(data["text"]), speaker, float(data["duration"]), group)
