"""The stages `speech` and `sets`: sentences spoken by synthetic voices.

speech/train, held-out     shards of samples; noise comes in training
sets/DOMAIN-PART           manifest.jsonl and FLAC files, with babble or white noise mixed in for good
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ilme.errors import BadInputError
from ilme.runtime.files import write_json_lines
from ilme.runtime.processes import cores, ordered_map
from ilme.study.config import DOMAINS, StudyConfig
from ilme.study.runner import Stage, Study
from ilme.study.shards import SHARD, is_whole, list_shards, read_samples
from ilme.study.synthesis import RATE, SET_FORMAT, Job, Part, SetJob, make_utterances, speak_shard
from ilme.study.texts import count_words, read_lines, speakable
from ilme.train.resident import ResidentAudio

__all__ = ["resident_part", "resident_shards", "sets_stage", "speech_stage", "write_manifest"]

SET_JOB = 50  # utterances of a dev or test set made in one go


def speech_stage(config: StudyConfig) -> Stage:
    """Training speech, clean: noise comes in training."""
    plan = config.speech
    inputs: dict[str, Any] = {"held_out": plan.held_out, "voices": plan.voices, "seed": config.seed}
    inputs |= {name: value for name in ("natural", "unheard") if (value := getattr(plan, name))}
    return Stage("speech", lambda study: _speak_training(study, config), ("text",), inputs, resumes=True)


def sets_stage(config: StudyConfig) -> Stage:
    """Dev and test of both domains, with babble or white noise mixed in for good."""
    plan = config.speech
    inputs = {
        "voices": plan.voices,
        "snr": plan.test_snr,
        "talkers": plan.talkers,
        "format": SET_FORMAT,
        "seed": config.seed,
        **({"unheard": plan.unheard} if plan.unheard else {}),
    }
    return Stage("sets", lambda study: _make_sets(study, config), ("text",), inputs, resumes=True)


def resident_part(study: Study, name: str, device: str) -> ResidentAudio:
    """The shards of `train` or `held-out` in the memory of a device."""
    return resident_shards(study.folder("speech") / name, device)


def resident_shards(folder: Path, device: str) -> ResidentAudio:
    listed = list_shards(folder)
    if not listed.ids:
        raise BadInputError(f"there is no speech in {folder}; remove {folder.parent} and start again to have it made")
    samples = torch.from_numpy(read_samples(folder, sum(listed.sizes)))
    starts = torch.tensor([0, *listed.sizes]).cumsum(0)
    return ResidentAudio(samples.to(device), starts, listed.ids, listed.texts, RATE)


def _speak_training(study: Study, config: StudyConfig) -> dict[str, Any]:
    text, folder = study.folder("text"), study.folder("speech")
    said = read_lines(text / "spoken.txt")
    kept = speakable(read_lines(text / "source-held-out.txt"), config)[: config.speech.held_out]
    parts = [Part("train", tuple(said), folder / "train"), Part("held-out", tuple(kept), folder / "held-out")]
    _speak(study, parts, config)
    return {
        "hours": round(_hours(parts[0]), 3),
        "utterances": len(said),
        "sentences": len(set(said)),
        "words": count_words(said),
        "held_out_hours": round(_hours(parts[1]), 3),
    }


def _make_sets(study: Study, config: StudyConfig) -> dict[str, Any]:
    text, folder = study.folder("text"), study.folder("sets")
    names = [f"{domain}-{part}" for domain in DOMAINS for part in ("dev", "test")]
    parts = [Part(name, tuple(read_lines(text / f"{name}.txt")), folder / "clean" / name) for name in names]
    _speak(study, parts, config)
    jobs = {part.name: _set_jobs(part, folder / part.name, config) for part in parts}
    made = iter(_made(study, config, make_utterances, [job for own in jobs.values() for job in own]))
    for name, own in jobs.items():
        write_manifest(folder / name, [row for _ in own for row in next(made)])
    return {"hours": {part.name: round(_hours(part), 3) for part in parts}}


def _speak(study: Study, parts: list[Part], config: StudyConfig) -> None:
    """Makes the shards that are not there yet."""
    jobs = [job for part in parts for job in _jobs(part, config)]
    _made(study, config, speak_shard, [job for job in jobs if not is_whole(job.file)])


def _hours(part: Part) -> float:
    return sum(list_shards(part.folder).sizes) / RATE / 3600


def _jobs(part: Part, config: StudyConfig) -> list[Job]:
    return [
        Job(
            file=part.folder / f"{start // SHARD:04d}",
            name=part.name,
            first=start,
            texts=part.texts[start : start + SHARD],
            voices=config.speech.voices,
            seed=config.seed,
            natural=config.speech.natural if part.name == "train" else 0.0,
            unheard=config.speech.unheard,
        )
        for start in range(0, len(part.texts), SHARD)
    ]


def _made(study: Study, config: StudyConfig, work: Callable[[Any], Any], jobs: list[Any]) -> list[Any]:
    """What `work` makes of each job, in their order; the synthesiser's state is global, so each worker is a process."""

    def in_time() -> Iterator[Any]:
        for job in jobs:
            study.check_time("all speech was made")
            yield job

    results: list[Any] = []
    for result in ordered_map(work, in_time(), config.speech.workers or cores()):
        results.append(result)
        if 5 * len(results) // len(jobs) > 5 * (len(results) - 1) // len(jobs):
            study.say(f"  {len(results)} of {len(jobs)} parts of the speech")
    return results


def _set_jobs(part: Part, folder: Path, config: StudyConfig) -> list[SetJob]:
    plan = config.speech
    return [
        SetJob(
            clean=part.folder,
            name=part.name,
            folder=folder,
            which=range(start, min(start + SET_JOB, len(part.texts))),
            snr=plan.test_snr,
            talkers=plan.talkers,
            seed=config.seed,
        )
        for start in range(0, len(part.texts), SET_JOB)
    ]


def write_manifest(folder: Path, rows: list[dict[str, Any]]) -> None:
    """manifest.jsonl, as `read_utterances` reads it: one utterance to a line."""
    write_json_lines(folder / "manifest.jsonl", rows)
