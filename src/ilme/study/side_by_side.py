"""Methods of one stage side by side, each in a process of its own.

A search asks the device for many small things, one after another, so a large GPU waits for the host most of the time.
The processes share the cores: what each does on the host, such as features, it does on its part of the threads.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ilme.study.config import StudyConfig
from ilme.study.runner import Study

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
    jobs = [(work, config, study.out, study.device, deadline, a) for a in arguments]
    count = min(study.processes, len(jobs))
    threads = max(1, torch.get_num_threads() // count)
    with multiprocessing.get_context("spawn").Pool(count, torch.set_num_threads, (threads,)) as pool:
        pool.starmap(_alone, jobs, chunksize=1)


def _alone(
    work: Work, config: StudyConfig, out: Path, device: str, deadline: float, arguments: tuple[Any, ...]
) -> None:
    from ilme.study.stages import build_study

    study = build_study(config, out, device)
    if deadline:
        study.limit(max(_NO_TIME, (deadline - time.time()) / 60))
    work(study, config, *arguments)
