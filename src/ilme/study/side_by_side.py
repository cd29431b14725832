"""Methods of one stage side by side, each in a process of its own.

A search asks the device for many small things, one after another, so a large GPU waits for the host most of the time.
The processes share the cores: what each does on the host, such as features, it does on its part of the threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ilme.runtime.processes import in_processes
from ilme.study.config import StudyConfig
from ilme.study.runner import Study, UnfinishedError

__all__ = ["side_by_side"]

Work = Callable[..., Any]
_NO_TIME = 1e-6  # minutes; 0 would set no limit


def side_by_side(study: Study, config: StudyConfig, work: Work, arguments: Sequence[tuple[Any, ...]]) -> None:
    """Calls work(study, config, *a) for each a of `arguments`, `study.processes` at a time, in new processes.

    What they find is what they write. With fewer than two of them, or one process, nothing is called: the caller does
    the work itself, and passes over what is written.
    """
    if study.processes < 2 or len(arguments) < 2:
        return
    minutes = study.minutes_left()
    deadline = time.time() + 60 * minutes if minutes else 0.0  # the same for one that has to wait for its turn
    count = min(study.processes, len(arguments))
    threads = max(1, torch.get_num_threads() // count)
    alone = _Alone(work, config, study.out, study.device, deadline, threads)
    unfinished = [why for why in in_processes(alone, arguments, count, lambda a: None) if why]
    if unfinished:
        raise UnfinishedError(unfinished[0])


@dataclass(frozen=True)
class _Alone:
    """The work in a process of its own, on a study of its own; why it is unfinished, or nothing.

    Where time is up that is returned, not raised: an error would end the others in the middle of their work.
    """

    work: Work
    config: StudyConfig
    out: Path
    device: str
    deadline: float
    threads: int

    def __call__(self, arguments: tuple[Any, ...], progress: object) -> str:
        from ilme.study.stages import build_study

        torch.set_num_threads(self.threads)
        study = build_study(self.config, self.out, self.device)
        if self.deadline:
            study.limit(max(_NO_TIME, (self.deadline - time.time()) / 60))
        try:
            self.work(study, self.config, *arguments)
        except UnfinishedError as error:
            return str(error)
        return ""
