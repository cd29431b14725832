"""New domains from text that clients send, one at a time, in a process of its own, while the service goes on.

    text → FOLDER/.adapting-…/text.txt → ilme.adapt in a child → FOLDER/.adapting-…/NAME → FOLDER/NAME → served

A folder appears under its name when it is complete. What was not finished, however it ended, lies in the hidden folder,
which goes with the run, or when the service starts again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ilme.errors import BadInputError, IlmeError
from ilme.recogniser.domain import CARD, Domain
from ilme.runtime.formats import Format
from ilme.serve.service import RequestError, Service
from ilme.serve.tasks import Failure
from ilme.workflows.transcribe import Job

__all__ = ["Adaptation", "Adapter", "made_before"]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
HIDDEN = ".adapting-"
REMEMBERED = 20  # runs that have ended
LINES = 200  # of a run
PATIENCE = 5.0  # seconds in which a run that is cancelled may end by itself
LONGEST_LINE = 1 << 20  # bytes
log = logging.getLogger("ilme.serve")


@dataclass
class Adaptation:
    """One run.

    Attributes:
        id: Its name for clients.
        name: Of the domain that it makes.
        base: The served domain or model whose model is adapted.
        state: How it stands.
        lines: What was done, a line for each.
        error: Why it failed; empty if it did not.
        began, ended: When, by the clock that cannot be set.
    """

    id: str
    name: str
    base: str
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    lines: list[str] = field(default_factory=list)
    error: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def shown(self) -> dict[str, Any]:
        """For clients."""
        seconds = (self.ended or time.monotonic()) - self.began
        return {
            "id": self.id,
            "object": "ilme.adaptation",
            "model": self.name,
            "base": self.base,
            "state": self.state,
            "lines": self.lines,
            "error": self.error or None,
            "seconds": round(seconds, 1),
        }


class Adapter:
    """Makes domains of the texts that clients send, and gives them to the service.

    Args:
        service: That serves them.
        folder: Where they are kept.
    """

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.runs: dict[str, Adaptation] = {}
        self._task: asyncio.Task[None] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{HIDDEN}*"):  # by a service that was killed
            shutil.rmtree(left, ignore_errors=True)

    def start(self, name: str, text: str, base: str) -> Adaptation:
        """Begins a run; a RequestError says why it cannot.

        Args:
            name: Of the new domain.
            text: Of the domain.
            base: The served domain or model whose model is adapted.
        """
        base = self.service.domain(base)
        if not NAME.fullmatch(name):
            raise RequestError("a domain's name has small letters, digits, dots, dashes and underscores", 400, "name")
        if name in self.service.jobs or os.path.lexists(self.folder / name):
            raise RequestError(f"there is a domain {name} already; choose another name", 409, "name")
        if not text.strip():
            raise RequestError("send text of the domain", 400, "text")
        if any(run.state == "running" for run in self.runs.values()):
            raise RequestError("another domain is being made; try again when it is done", 409)
        if len(self.service.jobs) >= self.service.options.domains:
            raise RequestError(
                f"{len(self.service.jobs)} domains are served, and no more are taken: remove a folder, or start the "
                "service with a larger --options.domains",
                409,
            )
        run = Adaptation(f"adapt_{secrets.token_hex(8)}", name, base)
        self.runs[run.id] = run
        for old in [key for key, other in self.runs.items() if other.state != "running"][:-REMEMBERED]:
            del self.runs[old]
        self._task = asyncio.create_task(self._run(run, text), name=run.id)
        return run

    def find(self, key: str) -> Adaptation:
        if key not in self.runs:
            raise RequestError("there is no such adaptation", 404)
        return self.runs[key]

    async def cancel(self, key: str) -> Adaptation:
        """Ends a run and leaves nothing of it; one that has ended stays as it is."""
        run = self.find(key)
        if run.state == "running" and self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        return run

    async def close(self) -> None:
        """Ends the run that is under way."""
        for run in list(self.runs.values()):
            await self.cancel(run.id)

    async def _run(self, run: Adaptation, text: str) -> None:
        work = self.folder / f"{HIDDEN}{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(_write, work, text)
            async with asyncio.timeout(self.service.options.adapt_timeout):
                await self._adapt(run, work)
            await self._serve(run, work / run.name)
            run.state = "done"
        except asyncio.CancelledError:
            run.state = "cancelled"
        except TimeoutError:
            run.state = "failed"
            run.error = f"it took more than {self.service.options.adapt_timeout:.0f} s; send less text"
        except OSError as error:  # its text has the service's own paths
            log.exception("the folder of domains")
            run.state = "failed"
            run.error = f"the folder of domains cannot be written: {error.strerror or type(error).__name__}"
        except Exception as error:
            run.state, run.error = "failed", str(error).replace(str(work), "") or type(error).__name__
        finally:
            run.ended = time.monotonic()
            shutil.rmtree(work, ignore_errors=True)

    async def _adapt(self, run: Adaptation, work: Path) -> None:
        """The child, from its start to its end."""
        job = self.service.jobs[run.base]
        request = _request(job, work / "text.txt", work / run.name)
        command = (sys.executable, "-m", "ilme.serve.adapting_child", str(os.getpid()))
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=LONGEST_LINE
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode())
            child.stdin.close()
            async for line in child.stdout:
                said = json.loads(line)
                if "error" in said:
                    run.error = said["error"]
                else:
                    run.lines = [*run.lines, str(said["done"]).replace(f"{work}/", "")][-LINES:]
            status = await child.wait()
        finally:
            await _ended(child)
        if status:
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise BadInputError(run.error or f"the process that adapts {how}")

    async def _serve(self, run: Adaptation, made: Path) -> None:
        """The finished folder under its name, and among the domains; it goes again if it cannot be loaded."""
        base = self.service.jobs[run.base]
        place = self.folder / run.name
        if os.path.lexists(place):  # made by somebody else meanwhile; a rename would replace an empty folder
            raise BadInputError(f"there is a {run.name} already; choose another name")
        made.rename(place)
        job = Job(str(place), base.model if base.domain else "", base.device, base.format)
        try:
            found = await self.service.add(run.name, job)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        if isinstance(found, Failure):
            shutil.rmtree(place, ignore_errors=True)
            raise BadInputError(f"it cannot be loaded: {found.message}")


def _write(work: Path, text: str) -> None:
    work.mkdir(mode=0o700)
    (work / "text.txt").write_text(text, encoding="utf-8", errors="replace")


def _request(job: Job, text: Path, out: Path) -> dict[str, Any]:
    return {
        "domain": job.domain,
        "model": job.model,
        "model_options": dict(job.model_options),
        "device": job.device,
        "format": job.format,
        "text": str(text),
        "out": str(out),
    }


async def _ended(child: asyncio.subprocess.Process) -> None:
    """Ends a process that has not ended yet."""
    with suppress(ProcessLookupError):
        if child.returncode is None:
            child.terminate()
            try:
                await asyncio.wait_for(child.wait(), PATIENCE)
            except TimeoutError:
                child.kill()
    await child.wait()


def made_before(
    folder: Path, base: Mapping[str, Job], device: str = "cpu", format: Format = "float32"
) -> dict[str, Job]:
    """The domains that an earlier service made in the folder, but for those whose names are taken.

    Args:
        folder: Where they are kept.
        base: The domains that are served anyway.
        device: Where everything runs.
        format: Format of the weights on a CPU.
    """
    found: dict[str, Job] = {}
    for card in sorted(folder.glob(f"*/{CARD}")):
        place = card.parent
        if not NAME.fullmatch(place.name) or place.name in base:
            continue
        try:
            Domain.read(place).check_files(place)
        except IlmeError as error:  # one damaged folder keeps none of the others from being served
            log.warning("%s is not served: %s", place.name, error)
            continue
        found[place.name] = Job(str(place), "", device, format)
    return found
