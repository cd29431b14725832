"""Stages: each writes into its own folder and leaves a mark there when it is done.

A mark holds the key of the stage: a hash of its part of the config, of the files it read from outside, and of the keys
of the stages before it. A stage whose mark has the right key is passed over; one whose mark is missing or has another
key is run. So a study can be killed at any moment and started again, and a change of the config runs again what
depends on it and nothing else. Several runs may work in one folder, on different stages: each stage is held by the run
that makes it, and a second one that comes to it is refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ilme.errors import BadInputError, IlmeError
from ilme.runtime.console import tell
from ilme.runtime.files import file_hash, make_folder, write_json
from ilme.runtime.locks import only_run, tidy

__all__ = ["MARK", "Stage", "Study", "UnfinishedError", "file_digest", "key_of", "used_fields"]

MARK = "done.json"


class UnfinishedError(IlmeError):
    """A stage stopped in good order before its end; the same command goes on."""


@dataclass(frozen=True)
class Stage:
    """One step of a study.

    Attributes:
        name: Also its folder's name.
        run: Does the work, given the study; writes into `study.folder(name)` and returns facts for the mark.
        needs: Names of the stages whose outputs it reads.
        inputs: All else that its outputs depend on, as JSON: config, digests of files.
        resumes: Whether it can go on with what a killed run left; otherwise its folder is emptied first.
    """

    name: str
    run: Callable[[Study], Mapping[str, Any] | None]
    needs: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False


def key_of(stage: Stage, keys: Mapping[str, str]) -> str:
    """What must be equal for two runs of a stage to give the same outputs."""
    parts = {"stage": stage.name, "inputs": dict(stage.inputs), "needs": {n: keys[n] for n in stage.needs}}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def used_fields(plan: Any, later: Sequence[str]) -> dict[str, Any]:
    """The fields of a plan that are part of a key: those that older studies had not, only where they are used."""
    return {name: value for name, value in asdict(plan).items() if value or name not in later}


def file_digest(path: Path) -> str:
    return file_hash(path)[:16]


class Study:
    """The stages of a study and the folder they work in.

    Args:
        stages: In an order in which each comes after those it needs.
        out: The study's folder.
        device: Where networks run.
        processes: How many methods are tuned, or tested, at a time.
    """

    def __init__(self, stages: Sequence[Stage], out: Path, device: str = "cpu", processes: int = 1) -> None:
        self.out, self.device, self.processes = out, device, processes
        self.stages = {stage.name: stage for stage in stages}
        self.keys: dict[str, str] = {}
        self._deadline = 0.0
        for stage in stages:
            missing = [n for n in stage.needs if n not in self.keys]
            if missing:
                raise BadInputError(f"stage {stage.name} needs {missing[0]}, which does not come before it")
            self.keys[stage.name] = key_of(stage, self.keys)

    def folder(self, stage: str) -> Path:
        return self.out / stage

    def done(self, stage: str) -> bool:
        """Whether its outputs are there and fit this config."""
        return self._mark(stage).get("key") == self.keys[stage]

    def facts(self, stage: str) -> dict[str, Any]:
        """What a finished stage wrote down."""
        facts: dict[str, Any] = self._mark(stage).get("facts", {})
        return facts

    def select(self, only: Sequence[str] = (), until: str = "") -> list[str]:
        """The stages to run, in their order: all up to `until`; or those of `only`, and what they need.

        Without both they are the stages that no other needs. A stage that is done asks for nothing.
        """
        for name in [*only, *([until] if until else [])]:
            if name not in self.stages:
                raise BadInputError(f"no stage {name!r}; this study has {', '.join(self.stages)}")
        names = list(self.stages)
        if until and not only:
            return names[: names.index(until) + 1]
        needed = {n for stage in self.stages.values() for n in stage.needs}
        wanted = set(only) or {n for n in names if n not in needed}
        for name in reversed(names):
            if name in wanted and not self.done(name):
                wanted.update(self.stages[name].needs)
        return [n for n in names if n in wanted]

    def run(self, only: Sequence[str] = (), until: str = "", minutes: float = 0.0) -> list[str]:
        """Runs what is not done; the names of the stages that ran.

        Args:
            only: These stages, and what those of them that are not done need; without it, the study's last stages.
            until: All stages up to this one.
            minutes: Stop in good order after about so long; 0 sets no limit.
        """
        self.limit(minutes)
        return self._run_all(self.select(only, until))

    def _run_all(self, names: Sequence[str]) -> list[str]:
        ran = []
        for name in names:
            if self.done(name):
                tidy(self.folder(name), role="stage")
                self.say(f"{name}: done before")
                continue
            try:
                self.check_time(name)
                with only_run(self.folder(name), role="stage"):
                    if not self.done(name):  # else another run has made it in the meantime
                        self._run(self.stages[name])
                        ran.append(name)
            except UnfinishedError as error:
                self.say(str(error))
                break
        return ran

    def limit(self, minutes: float) -> None:
        """The work is to end in good order after so long; 0 sets no limit."""
        self._deadline = time.monotonic() + 60 * minutes if minutes else 0.0

    def minutes_left(self) -> float:
        """What is left of the time given; 0 where no limit was set."""
        return max(0.01, (self._deadline - time.monotonic()) / 60) if self._deadline else 0.0

    def check_time(self, what: str) -> None:
        """Raises UnfinishedError once the time is up; long stages ask between two pieces of work."""
        if self._deadline and time.monotonic() > self._deadline:
            raise UnfinishedError(f"time is up before {what}; start again to go on")

    def _run(self, stage: Stage) -> None:
        folder = self.folder(stage.name)
        begun = folder / "begun.json"
        same = begun.is_file() and json.loads(begun.read_text()).get("key") == self.keys[stage.name]
        if folder.is_symlink() and not (stage.resumes and same):
            folder.unlink()  # the link alone: the files may serve another study
        elif folder.exists() and not (stage.resumes and same):
            shutil.rmtree(folder)
        for left in list(folder.rglob(".*.partial")):  # by a killed run
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        make_folder(folder)
        write_json(begun, {"key": self.keys[stage.name]}, indent=None)
        self.say(f"{stage.name} …")
        started = time.monotonic()
        facts = dict(stage.run(self) or {})
        seconds = round(time.monotonic() - started, 2)
        mark = {"stage": stage.name, "key": self.keys[stage.name], "seconds": seconds, "facts": facts}
        write_json(folder / MARK, mark)
        shown = ", ".join(f"{k} {v}" for k, v in facts.items() if isinstance(v, int | float | str))
        self.say(f"{stage.name}: {seconds:.1f} s{'; ' if shown else ''}{shown}")

    def _mark(self, stage: str) -> dict[str, Any]:
        path = self.folder(stage) / MARK
        if not path.is_file():
            return {}
        try:
            mark: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise BadInputError(f"{path} is damaged ({error}); remove it and the stage is run again") from error
        return mark

    def say(self, text: str) -> None:
        tell(f"study: {text}")
