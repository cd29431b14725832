"""Workers answer one task after another; a process that is killed is noticed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from ilme.recogniser.windows import Window
from ilme.serve.tasks import About, Describe, Failure, Recognise, Shelf
from ilme.serve.workers import ProcessWorker, ThreadWorker, WorkerDied
from ilme.workflows.transcribe import Job
from tests.checkpoints import noise


@dataclass(frozen=True)
class Faulty:
    """A task with a fault in it."""

    def run(self, shelf: Shelf) -> None:
        raise ZeroDivisionError("by zero")


def test_a_fault_is_an_answer() -> None:
    worker = ThreadWorker(voice_activity=False)
    assert worker.ask(Faulty()) == Failure("ZeroDivisionError: by zero")
    missing = worker.ask(Describe("x", Job(model="/no/such/model")))
    assert isinstance(missing, Failure) and "/no/such/model" in missing.message


@pytest.mark.slow
def test_a_process_answers_as_a_thread_does_and_its_death_is_noticed(models: Path) -> None:
    job = Job(str(models / "sea"))
    window = Window(0.0, 0.9, noise(0.9))
    tasks = (Describe("sea", job), Recognise("sea", job, [window]))
    here = ThreadWorker(voice_activity=False)
    there = ProcessWorker(voice_activity=False)
    try:
        about, ours = there.ask(tasks[0]), here.ask(tasks[0])
        assert isinstance(about, About) and (about.kind, about.rate, about.lm) == (ours.kind, ours.rate, ours.lm)
        assert there.ask(tasks[1])[0][0].text == here.ask(tasks[1])[0][0].text != ""
        os.kill(there.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            there.ask(tasks[1])
    finally:
        there.close()
