"""Transcription over the workers of a Ray cluster: each has the recogniser, takes a few files and returns their texts.

Files are named, not sent: they must be where the workers can read them. A worker that dies costs nothing: the files
that it had are given to another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ilme.data.audio_files import AudioFile
from ilme.errors import BadInputError
from ilme.recogniser.ray_decoder import connect
from ilme.workflows.transcribe import Job, Outcome, Progress, TranscribeOptions, _seconds, transcribe_files

__all__ = ["transcribe_over_ray"]

TRIES = 3  # of the files that a dying worker had
CHUNK_SECONDS = 600.0
CHUNK_FILES = 32


class _Worker:
    """What lives on a worker."""

    def __init__(self, job: Job, options: TranscribeOptions) -> None:
        self.recogniser, self.options = job.load(), options

    def transcribe(self, files: Sequence[AudioFile]) -> list[Outcome]:
        return list(transcribe_files(self.recogniser, files, self.options))


def transcribe_over_ray(
    job: Job,
    files: Sequence[AudioFile],
    options: TranscribeOptions,
    address: str,
    workers: int,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """What becomes of each file, as files finish."""
    if workers < 1:
        raise BadInputError(f"Ray needs at least one worker, got {workers}")
    ray, started = connect(address)
    actor = ray.remote(num_cpus=1, num_gpus=1 if job.device.startswith("cuda") else 0)(_Worker)
    waiting = deque((chunk, TRIES) for chunk in _chunks(files))
    total, done = sum(map(_seconds, files)), 0.0
    idle = [actor.remote(job, options) for _ in range(min(workers, len(waiting)))]
    running: dict[Any, tuple[Any, list[AudioFile], int]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                worker, (chunk, tries) = idle.pop(), waiting.popleft()
                running[worker.transcribe.remote(chunk)] = (worker, chunk, tries)
            (ready,), _ = ray.wait(list(running), num_returns=1)
            worker, chunk, tries = running.pop(ready)
            try:
                outcomes: list[Outcome] = ray.get(ready)
            except ray.exceptions.RayActorError as error:
                if tries == 1:
                    outcomes = [Outcome(file, error=f"{TRIES} workers died over it: {error}") for file in chunk]
                else:
                    waiting.append((chunk, tries - 1))
                    outcomes = []
                worker = actor.remote(job, options)
            idle.append(worker)
            yield from outcomes
            done += sum(_seconds(o.file) for o in outcomes)
            if progress is not None and outcomes:
                progress(done, total)
    finally:
        for worker in (*idle, *(w for w, _, _ in running.values())):
            ray.kill(worker)
        if started:
            ray.shutdown()


def _chunks(files: Sequence[AudioFile]) -> Iterator[list[AudioFile]]:
    """A few files together: enough to fill batches, few enough to share well."""
    chunk: list[AudioFile] = []
    held = 0.0
    for file in files:
        chunk.append(file)
        held += _seconds(file)
        if held >= CHUNK_SECONDS or len(chunk) >= CHUNK_FILES:
            yield chunk
            chunk, held = [], 0.0
    if chunk:
        yield chunk
