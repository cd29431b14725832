"""The stage `speech`: sentences spoken by synthetic voices; dev and test with babble and noise mixed in for good.

train/, held-out/      shards of int16 samples, and sizes, voices and texts beside them; noise comes in training
DOMAIN-PART/           manifest.jsonl and Opus files: what is decoded here is, byte for byte, what can be bundled
transcripts.txt        every sentence of the training speech once
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from ilme.checkpoint import write_atomically
from ilme.errors import BadInputError
from ilme.study.config import DOMAINS, StudyConfig
from ilme.study.runner import Stage, Study
from ilme.study.speaking import RATE, Job, Part, noisy, speak_shard, write_opus
from ilme.study.texts import read_lines, write_lines
from ilme.train.resident import ResidentAudio

__all__ = ["resident_part", "speech_stage"]

WORDS_A_MINUTE = 165  # of the voices on average; decides how many sentences make an hour
SHARD = 400  # utterances in a file


def speech_stage(config: StudyConfig) -> Stage:
    inputs = {
        "plan": {k: v for k, v in asdict(config.speech).items() if k not in ("workers", "train_snr")},
        "lengths": [config.text.shortest, config.text.longest],
        "seed": config.seed,
    }
    return Stage("speech", lambda study: _speak(study, config), ("text",), inputs, resumes=True)


def resident_part(study: Study, name: str, device: str) -> ResidentAudio:
    """The shards of `train` or `held-out` in the memory of a device."""
    folder = study.folder("speech") / name
    shards = sorted(folder.glob("*.json"))
    if not shards:
        raise BadInputError(f"there is no speech in {folder}; run the stage speech first")
    described = [json.loads(path.read_text()) for path in shards]
    sizes = [size for shard in described for size in shard["sizes"]]
    samples = torch.empty(sum(sizes), dtype=torch.int16)
    at = 0
    for path in shards:
        data = np.fromfile(path.with_suffix(".i16"), dtype="<i2")
        samples[at : at + len(data)] = torch.from_numpy(data)
        at += len(data)
    if at != len(samples):
        raise BadInputError(f"{folder} holds {at} samples, its lists say {len(samples)}; remove it and start again")
    starts = torch.tensor([0, *sizes]).cumsum(0)
    ids = [i for shard in described for i in shard["ids"]]
    texts = [t for shard in described for t in shard["texts"]]
    return ResidentAudio(samples.to(device), starts, ids, texts, RATE)


def _speak(study: Study, config: StudyConfig) -> dict[str, Any]:
    text, folder, plan = study.folder("text"), study.folder("speech"), config.speech
    chosen = _training_sentences(read_lines(text / "source-train.txt"), config)
    kept = [s for s in read_lines(text / "source-held-out.txt") if _fits(s, config)][: plan.held_out]
    parts = [
        Part("train", tuple(chosen), folder / "train"),
        Part("held-out", tuple(kept), folder / "held-out"),
    ]
    for domain in DOMAINS:
        for part in ("dev", "test"):
            name = f"{domain}-{part}"
            parts.append(Part(name, tuple(read_lines(text / f"{name}.txt")), folder / "clean" / name))
    jobs = [job for part in parts for job in _jobs(part, config)]
    workers = plan.workers or os.cpu_count() or 1
    _run_jobs(study, [j for j in jobs if not j.file.with_suffix(".json").is_file()], workers)
    for spoken in parts[2:]:
        _make_set(spoken, folder / spoken.name, config)
    write_lines(folder / "transcripts.txt", list(dict.fromkeys(chosen)))
    sizes = {p.name: sum(_sizes(p.folder)) / RATE / 3600 for p in parts}
    return {
        "hours": round(sizes["train"], 3),
        "utterances": len(chosen),
        "sentences": len(set(chosen)),
        "words": sum(len(s.split()) for s in chosen),
        "set_hours": {name: round(hours, 3) for name, hours in sizes.items() if name != "train"},
    }


def _fits(sentence: str, config: StudyConfig) -> bool:
    return config.text.shortest <= len(sentence.split()) <= config.text.longest


def _training_sentences(sentences: Sequence[str], config: StudyConfig) -> list[str]:
    """Sentences in a drawn order, again from the start for each pass, until they fill the hours."""
    wanted = config.speech.hours * 60 * WORDS_A_MINUTE
    speakable = [s for s in sentences if _fits(s, config)]
    if not speakable:
        raise BadInputError(
            f"no training sentence has {config.text.shortest} to {config.text.longest} words; change text.longest"
        )
    chosen: list[str] = []
    words = 0
    for turn in range(config.speech.passes):
        order = Random(f"{config.seed}/pass/{turn}").sample(speakable, len(speakable))
        for sentence in order:
            if words >= wanted:
                return chosen
            chosen.append(sentence)
            words += len(sentence.split())
    return chosen


def _jobs(part: Part, config: StudyConfig) -> list[Job]:
    return [
        Job(
            file=part.folder / f"{start // SHARD:04d}",
            name=part.name,
            first=start,
            texts=part.texts[start : start + SHARD],
            voices=config.speech.voices,
            seed=config.seed,
        )
        for start in range(0, len(part.texts), SHARD)
    ]


def _run_jobs(study: Study, jobs: list[Job], workers: int) -> None:
    """Speaks the shards, one process for each worker: the synthesiser's state is global to a process."""
    if not jobs:
        return
    done, shown = 0, 0
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            study.check_time("all speech was made")
            speak_shard(job)
        return
    with multiprocessing.get_context("spawn").Pool(min(workers, len(jobs))) as pool:
        for _ in pool.imap_unordered(speak_shard, jobs):
            done += 1
            if 10 * done // len(jobs) > shown:
                shown = 10 * done // len(jobs)
                study.say(f"  {done} of {len(jobs)} shards spoken")


def _sizes(folder: Path) -> list[int]:
    return [size for path in sorted(folder.glob("*.json")) for size in json.loads(path.read_text())["sizes"]]


def _make_set(part: Part, folder: Path, config: StudyConfig) -> None:
    """A dev or test set: noise mixed in, written as Opus with a NeMo-style manifest."""
    shards = [json.loads(path.read_text()) for path in sorted(part.folder.glob("*.json"))]
    flat = np.concatenate([np.fromfile(p.with_suffix(".i16"), dtype="<i2") for p in sorted(part.folder.glob("*.json"))])
    sizes = [size for shard in shards for size in shard["sizes"]]
    clean = np.split(flat, np.cumsum(sizes)[:-1])
    ids = [i for shard in shards for i in shard["ids"]]
    voices = [v for shard in shards for v in shard["voices"]]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for k, (name, text, voice) in enumerate(zip(ids, part.texts, voices, strict=True)):
        draw = np.random.default_rng([config.seed, *part.name.encode(), k])
        mixed, about = noisy(clean, k, draw, config.speech.test_snr, config.speech.talkers)
        write_opus(folder / f"{name}.opus", mixed)
        seconds = round(len(mixed) / RATE, 4)
        rows.append(
            {"audio_filepath": f"{name}.opus", "id": name, "text": text, "speaker": voice, "duration": seconds} | about
        )
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(folder / "manifest.jsonl", lines.encode())
