"""Transcription by several processes of this machine: they search batches of windows, of whatever files.

This process reads the files and writes what was found; so one long file keeps all of them busy, and results are those
of one process, batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ilme.data.audio_files import AudioFile
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.windows import Window
from ilme.runtime.memory import give_back_memory
from ilme.runtime.processes import cores, standing_pool
from ilme.workflows.transcribe import Found, Job, Outcome, Progress, TranscribeOptions, in_batches, recognise_windows

__all__ = ["transcribe_in_processes"]


class _Searcher:
    """What lives in a process. Asked for nothing, it says what windows its model takes; given some, what is in them."""

    def __init__(self, job: Job, options: TranscribeOptions, threads: int) -> None:
        self.job, self.options, self.threads = job, options, threads
        self.recogniser: Recogniser | None = None

    def __call__(self, windows: Sequence[Window] | None) -> Any:
        if self.recogniser is None:
            import torch

            if self.threads:
                torch.set_num_threads(self.threads)
            self.recogniser = self.job.load()
        if windows is None:
            return self.recogniser.rate, self.recogniser.window
        found = recognise_windows(self.recogniser, windows, self.options.baseline, self.options.words)
        give_back_memory()
        return found


def transcribe_in_processes(
    job: Job,
    files: Sequence[AudioFile],
    options: TranscribeOptions,
    workers: int,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """What becomes of each file, as files finish."""
    threads = 0 if "OMP_NUM_THREADS" in os.environ else max(1, cores() // workers)  # 0: torch reads it itself
    with standing_pool(_Searcher(job, options, threads), workers) as over:

        def search(batches: Iterable[Sequence[Window]]) -> Iterator[list[Found]]:
            return over(batches)

        rate, longest = list(over([None] * workers))[-1]  # all load now, not with their first windows
        yield from in_batches(files, rate, longest, search, options, progress)
