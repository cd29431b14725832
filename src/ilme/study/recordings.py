"""The stages `text` and `speech` of a study on recorded speech.

text:    source-train, transcripts, source-held-out, NAME-train and NAME-held-out of each target domain, NAME-dev, -test
speech:  train/ and held-out/ as shards of int16 samples; NAME-dev/ and NAME-test/ as manifests of the corpora's files
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from ilme.data.audio import load_audio, to_int16
from ilme.data.exclude import Exclusion
from ilme.data.normalise import spoken
from ilme.errors import BadInputError
from ilme.runtime.processes import cores
from ilme.study.config import StudyConfig
from ilme.study.corpora import (
    CorpusPart,
    RecordingsPlan,
    Row,
    audio_of,
    find_file,
    manifest_of,
    rows_of,
    synthetic_study,
    training_rows,
)
from ilme.study.runner import Stage, Study, file_digest
from ilme.study.shards import SHARD, is_whole, write_shard
from ilme.study.speech import write_manifest
from ilme.study.synthesis import RATE
from ilme.study.texts import count_words, read_lines, write_lines

__all__ = ["recorded_speech_stage", "recorded_text_stage", "target_text"]

_SPOKEN = re.compile(r"[a-z' ]+")


def recorded_text_stage(config: StudyConfig) -> Stage:
    plan = config.recordings
    parts = {"train": plan.train, "held-out": plan.held_out, **plan.sets, **plan.texts}
    inputs = {
        "manifests": {part.corpus: file_digest(manifest_of(plan, part)) for part in parts.values()},
        "parts": {name: asdict(part) for name, part in parts.items()},
        "target": file_digest(target_text(config)),
        "lengths": [plan.shortest, plan.longest, plan.piece],
        "held_out": config.text.held_out,
        "lm_sentences": config.text.lm_sentences,
        "seed": config.seed,
    }
    if spoken_too := synthetic_study(plan):
        inputs["synthetic"] = file_digest(spoken_too / "text" / "spoken.txt")
    return Stage("text", lambda study: _write_texts(study, config), inputs=inputs)


def recorded_speech_stage(config: StudyConfig) -> Stage:
    """Its files are named in the manifests that `text` depends on."""
    return Stage("speech", lambda study: _write_speech(study, config), ("text",), resumes=True)


def target_text(config: StudyConfig) -> Path:
    """The running text of the target domain: text/NAME/train.txt in one of the roots, compressed or not."""
    name = f"text/{config.text.target.name}/train.txt"
    return find_file(config.recordings, name, f"{name}.xz", f"{name}.gz")


def _write_texts(study: Study, config: StudyConfig) -> dict[str, Any]:
    """Every text of the study; a held-out transcript of the source is none that was learnt."""
    plan, folder, seed = config.recordings, study.folder("text"), config.seed
    train = [row.text for row in training_rows(plan, seed)]
    if spoken_too := synthetic_study(plan):
        train += read_lines(spoken_too / "text" / "spoken.txt")
    write_lines(folder / "source-train.txt", train)
    write_lines(folder / "transcripts.txt", list(dict.fromkeys(train)))
    heard = set(train)
    held_out = [row.text for row in rows_of(plan, plan.held_out, seed)]
    write_lines(folder / "source-held-out.txt", [text for text in held_out if text not in heard])
    facts: dict[str, Any] = {"source_words": count_words(train)}
    evaluation: list[str] = []
    for name, part in plan.sets.items():
        texts = [row.text for row in rows_of(plan, part, seed)]
        write_lines(folder / f"{name}.txt", texts)
        facts[name] = f"{len(texts)} utterances"
        if name.startswith("target-"):
            evaluation += texts
    for name, part in plan.texts.items():
        learnt, kept = _hold_out_groups(rows_of(plan, part, seed), f"{seed}/{name}")
        write_lines(folder / f"{name}-train.txt", learnt)
        write_lines(folder / f"{name}-held-out.txt", kept)
        facts[f"{name}_words"] = count_words(learnt)
    return facts | _write_target_texts(config, folder, evaluation)


def _hold_out_groups(rows: Sequence[Row], seed: str) -> tuple[list[str], list[str]]:
    """Texts to learn, and those of a tenth of the groups, held out.

    Repetitions stay, since their frequency is what an LM learns.
    """
    groups = sorted({row.group for row in rows})
    kept = set(Random(seed).sample(groups, max(1, len(groups) // 10)))
    return [r.text for r in rows if r.group not in kept], [r.text for r in rows if r.group in kept]


def _write_target_texts(config: StudyConfig, folder: Path, evaluation: Sequence[str]) -> dict[str, Any]:
    """target-train and target-held-out: running text without what it shares with the evaluation sets."""
    lines = [line if _SPOKEN.fullmatch(line) else spoken(line) for line in read_lines(target_text(config))]
    shared = Exclusion.from_texts(evaluation).overlaps(lines, are_spoken=True)
    pieces = _pieces(lines, [s is not None for s in shared], config.recordings.piece, Random(f"{config.seed}/pieces"))
    Random(f"{config.seed}/target").shuffle(pieces)
    count = config.text.held_out
    train = pieces[count:]
    if config.text.lm_sentences:
        train = train[: config.text.lm_sentences]
    if not train:
        raise BadInputError(
            f"{target_text(config)} has no text left beside {count} pieces held out; lower text.held_out"
        )
    write_lines(folder / "target-held-out.txt", pieces[:count])
    write_lines(folder / "target-train.txt", train)
    return {"target_words": count_words(train), "target_excluded": sum(s is not None for s in shared)}


def _pieces(lines: Sequence[str], left_out: Sequence[bool], longest: int, draw: Random) -> list[str]:
    """Consecutive lines joined until a drawn length is reached; a line that is left out ends a piece."""
    pieces: list[str] = []
    piece: list[str] = []
    words, wanted = 0, 0
    for line, out in zip(lines, left_out, strict=True):
        size = line.count(" ") + 1
        if piece and (out or words >= wanted or words + size > longest):
            pieces.append(" ".join(piece))
            piece, words = [], 0
        if out or not line:
            continue
        if not piece:
            wanted = draw.randint(1, max(1, longest))
        piece.append(line)
        words += size
    return [*pieces, " ".join(piece)] if piece else pieces


def _write_speech(study: Study, config: StudyConfig) -> dict[str, Any]:
    plan, folder = config.recordings, study.folder("speech")
    hours: dict[str, float] = {}
    parts = {"train": (plan.train, training_rows(plan, config.seed))}
    parts["held-out"] = (plan.held_out, rows_of(plan, plan.held_out, config.seed))
    for name, (part, rows) in parts.items():
        _write_shards(plan, part, rows, folder / name)
        hours[name] = sum(row.seconds for row in rows) / 3600
    for name, part in plan.sets.items():
        rows = rows_of(plan, part, config.seed)
        write_manifest(folder / name, [_entry(plan, part, row) for row in rows])
        hours[name] = sum(row.seconds for row in rows) / 3600
    return {f"{name}_hours": round(value, 3) for name, value in hours.items()}


def _write_shards(plan: RecordingsPlan, part: CorpusPart, rows: Sequence[Row], folder: Path) -> None:
    """Reads the audio of all rows, in threads, and writes the shards that are not there yet."""

    def write(first: int) -> None:
        file, some = folder / f"{first // SHARD:04d}", rows[first : first + SHARD]
        if not is_whole(file):
            waves = [to_int16(load_audio(audio_of(plan, part, row), RATE) * 32768) for row in some]
            write_shard(file, [r.id for r in some], [r.text for r in some], [r.speaker for r in some], waves)

    with ThreadPoolExecutor(plan.workers or cores()) as pool:
        list(pool.map(write, range(0, len(rows), SHARD)))


def _entry(plan: RecordingsPlan, part: CorpusPart, row: Row) -> dict[str, Any]:
    """A line of a set's manifest; the audio stays where the corpus has it."""
    audio = str(audio_of(plan, part, row).resolve())
    return {"audio_filepath": audio, "id": row.id, "text": row.text, "speaker": row.speaker, "duration": row.seconds}
