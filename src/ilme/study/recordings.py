"""The stages `text` and `speech` of a study on recorded speech.

text:    source-train, transcripts, source-held-out, NAME-train and NAME-held-out of each target domain, NAME-dev, -test
speech:  train/ and held-out/ as shards of int16 samples; NAME-dev/ and NAME-test/ as manifests of the corpora's files
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ilme.checkpoint import write_atomically
from ilme.data.audio import load_audio
from ilme.data.exclude import Exclusion
from ilme.data.normalise import spoken
from ilme.data.speed import change_speed, low_pass
from ilme.errors import BadInputError
from ilme.study.config import StudyConfig
from ilme.study.corpora import CorpusPart, RecordingsPlan, Row, find_file, manifest_of, rows_of, training_rows
from ilme.study.runner import Stage, Study, file_digest
from ilme.study.speaking import RATE
from ilme.study.texts import read_lines, write_lines
from ilme.train.resident import ResidentAudio

__all__ = ["copies", "recorded_speech_stage", "recorded_text_stage", "target_text"]

SHARD = 200  # utterances in a file
TELEPHONE = 0.5  # share of the band of 16 kHz audio that a telephone lets through
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
    return Stage("text", lambda study: _choose(study, config), inputs=inputs)


def recorded_speech_stage(config: StudyConfig) -> Stage:
    """Its files are named in the manifests that `text` depends on."""
    return Stage("speech", lambda study: _decode(study, config), ("text",), resumes=True)


def target_text(config: StudyConfig) -> Path:
    """The running text of the target domain: text/NAME/train.txt in one of the roots, compressed or not."""
    name = f"text/{config.text.target.name}/train.txt"
    return find_file(config.recordings, name, f"{name}.xz", f"{name}.gz")


def _choose(study: Study, config: StudyConfig) -> dict[str, Any]:
    plan, folder, seed = config.recordings, study.folder("text"), config.seed
    train = [row.text for row in training_rows(plan, seed)]
    write_lines(folder / "source-train.txt", train)
    write_lines(folder / "transcripts.txt", list(dict.fromkeys(train)))
    held_out = [row.text for row in rows_of(plan, plan.held_out, seed)]
    write_lines(folder / "source-held-out.txt", [text for text in held_out if text not in set(train)])
    facts: dict[str, Any] = {"source_words": _words(train)}
    evaluation: list[str] = []
    for name, part in plan.sets.items():
        texts = [row.text for row in rows_of(plan, part, seed)]
        write_lines(folder / f"{name}.txt", texts)
        facts[name] = f"{len(texts)} utterances"
        if name.startswith("target-"):
            evaluation += texts
    for name, part in plan.texts.items():
        learnt, kept = _by_group(rows_of(plan, part, seed), f"{seed}/{name}")
        write_lines(folder / f"{name}-train.txt", learnt)
        write_lines(folder / f"{name}-held-out.txt", kept)
        facts[f"{name}_words"] = _words(learnt)
    return facts | _target(config, folder, evaluation)


def _by_group(rows: Sequence[Row], seed: str) -> tuple[list[str], list[str]]:
    """Texts to learn and texts held out; repetitions stay, since their frequency is what an LM learns."""
    groups = sorted({row.group for row in rows})
    kept = set(Random(seed).sample(groups, max(1, len(groups) // 10)))
    return [r.text for r in rows if r.group not in kept], [r.text for r in rows if r.group in kept]


def _target(config: StudyConfig, folder: Path, evaluation: Sequence[str]) -> dict[str, Any]:
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
        raise BadInputError(f"{target_text(config)} has no text left beside {count} pieces held out")
    write_lines(folder / "target-held-out.txt", pieces[:count])
    write_lines(folder / "target-train.txt", train)
    return {"target_words": _words(train), "target_excluded": sum(s is not None for s in shared)}


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


def _words(texts: Sequence[str]) -> int:
    return sum(len(text.split()) for text in texts)


def _decode(study: Study, config: StudyConfig) -> dict[str, Any]:
    plan, folder = config.recordings, study.folder("speech")
    workers = plan.workers or os.cpu_count() or 1
    hours: dict[str, float] = {}
    parts = (
        ("train", plan.train, training_rows(plan, config.seed)),
        ("held-out", plan.held_out, rows_of(plan, plan.held_out, config.seed)),
    )
    for name, part, rows in parts:
        shards = [rows[start : start + SHARD] for start in range(0, len(rows), SHARD)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        files = [folder / name / f"{i:04d}" for i in range(len(shards))]
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(_write_shard, plan, part, rows, file) for rows, file in zip(shards, files, strict=True)]
            for job in jobs:
                job.result()
        hours[name] = sum(row.seconds for row in rows) / 3600
    for name, part in plan.sets.items():
        rows = rows_of(plan, part, config.seed)
        (folder / name).mkdir(exist_ok=True)
        lines = "".join(json.dumps(_entry(plan, part, row), ensure_ascii=False) + "\n" for row in rows)
        write_atomically(folder / name / "manifest.jsonl", lines.encode())
        hours[name] = sum(row.seconds for row in rows) / 3600
    return {f"{name}_hours": round(value, 3) for name, value in hours.items()}


def _audio(plan: RecordingsPlan, part: CorpusPart, row: Row) -> Path:
    return find_file(plan, f"{part.corpus}/{row.audio}")


def _entry(plan: RecordingsPlan, part: CorpusPart, row: Row) -> dict[str, Any]:
    audio = str(_audio(plan, part, row).resolve())
    return {"audio_filepath": audio, "id": row.id, "text": row.text, "speaker": row.speaker, "duration": row.seconds}


def _write_shard(plan: RecordingsPlan, part: CorpusPart, rows: Sequence[Row], file: Path) -> None:
    """FILE.i16 with the samples, then FILE.json, which says that the shard is whole."""
    about = file.with_suffix(".json")
    if about.is_file():
        return
    waves = [_samples(_audio(plan, part, row)) for row in rows]
    write_atomically(file.with_suffix(".i16"), b"".join(wave.astype("<i2").tobytes() for wave in waves))
    listed = {
        "ids": [row.id for row in rows],
        "texts": [row.text for row in rows],
        "voices": [row.speaker for row in rows],
        "sizes": [len(wave) for wave in waves],
    }
    write_atomically(about, json.dumps(listed, ensure_ascii=False).encode())


def _samples(path: Path) -> NDArray[np.int16]:
    wave = load_audio(path, RATE)
    return np.clip(np.rint(wave * 32768), -32768, 32767).astype(np.int16)


def copies(
    audio: ResidentAudio, speeds: Sequence[float], telephone: bool = False, joined: float = 0.0, seed: int = 0
) -> ResidentAudio:
    """The corpus at each speed, as a telephone lets it through, and in longer utterances: made where its samples lie.

    Utterances stand one after another, so all of them are filtered as one signal. The filter reaches a millisecond
    beyond an utterance's ends.
    """
    samples, starts = [], [torch.zeros(1, dtype=torch.long)]
    ids: list[str] = []
    texts = audio.texts * (len(speeds) + int(telephone))
    at = 0
    for speed in speeds:
        changed, ratio = change_speed(audio.samples, speed)
        samples.append(changed)
        ends = (audio.starts[1:] * ratio.numerator // ratio.denominator).clamp(max=len(changed))
        starts.append(ends + at)
        at += int(ends[-1])
        samples[-1] = changed[: int(ends[-1])]
        ids += [f"{name}@{speed:g}" for name in audio.ids]
    if telephone:
        samples.append(low_pass(audio.samples, TELEPHONE))
        starts.append(audio.starts[1:] + at)
        ids += [f"{name}@telephone" for name in audio.ids]
        at += len(audio.samples)
    if joined:
        groups = _groups(audio.starts.diff().tolist(), joined * audio.rate, Random(seed))
        samples.append(audio.samples)
        starts.append(audio.starts[[group.stop for group in groups]] + at)
        ids += [f"{audio.ids[group.start]}@{len(group)}" for group in groups]
        texts += [" ".join(audio.texts[i] for i in group) for group in groups]
    return ResidentAudio(torch.cat(samples), torch.cat(starts), ids, texts, audio.rate)


def _groups(sizes: Sequence[int], longest: float, draw: Random) -> list[range]:
    """Neighbours, as many as fit a length drawn from a third of the longest up to the longest."""
    groups: list[range] = []
    first, total, wanted = 0, 0, draw.uniform(longest / 3, longest)
    for i, size in enumerate(sizes):
        if i > first and total + size > wanted:
            groups.append(range(first, i))
            first, total, wanted = i, 0, draw.uniform(longest / 3, longest)
        total += size
    return [*groups, range(first, len(sizes))] if sizes else []
