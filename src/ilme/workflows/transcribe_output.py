"""The folder that transcripts are written to.

It holds a journal of what is done: a run that was killed goes on where it was, and what another run wrote is not
overwritten unasked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, cast

from ilme.data.audio_files import AudioFile
from ilme.errors import BadInputError
from ilme.recogniser.store import identity
from ilme.recogniser.transcripts import Transcript, check_format, write_transcript
from ilme.runtime.files import append, open_journal, remove_partials
from ilme.runtime.locks import only_run
from ilme.workflows.options import TranscribeOptions

__all__ = ["Outcome", "Output"]

BASELINE = "baseline"  # between the name and the suffix of a transcript without fusion
JOURNAL = ".ilme-transcribe"


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        file: The file.
        transcript: What is said in it; None if it failed.
        baseline: The same without fusion, where it was asked for.
        error: Why it failed; empty if it did not.
    """

    file: AudioFile
    transcript: Transcript | None = None
    baseline: Transcript | None = None
    error: str = ""


class Output:
    """The folder of transcripts and the journal of what is done; to be used in a `with`, which keeps other runs out.

    Args:
        folder: The folder.
        description: What was used; a journal of another description is not continued.
        formats: Of the transcripts.
        options: Whether there is a baseline.
        overwrite: Replace what another run wrote.
        rank: Which of several processes writes here.
    """

    def __init__(
        self,
        folder: Path,
        description: Mapping[str, Any],
        formats: Sequence[str],
        options: TranscribeOptions,
        overwrite: bool = False,
        rank: int = 0,
    ) -> None:
        for name in formats:
            check_format(name)
        if folder.exists() and not folder.is_dir():
            raise BadInputError(f"{folder} is a file; name a folder with --out")
        self.folder, self.formats, self.overwrite = folder, tuple(formats), overwrite
        self.baseline = options.baseline
        about = {**description, "formats": sorted(formats), "baseline": options.baseline}
        if options.words:  # journals of runs without them stay as they were
            about["words"] = True
        self.journal = folder / JOURNAL / f"{identity(about)}-{rank:04d}.jsonl"
        self.about, self.rank = about, rank
        self._held, self._stream = ExitStack(), cast("FileIO | None", None)

    def __enter__(self) -> Output:
        self._held.enter_context(only_run(self.folder / JOURNAL / f"{self.rank:04d}"))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def left(self, files: Sequence[AudioFile]) -> list[AudioFile]:
        """The files that no run with the same settings has finished; an error if another run's would be overwritten."""
        noted = self._noted()
        left = [file for file in files if noted.get(file.name) != _state(file) or not self._whole(file)]
        foreign = [file for file in left if file.name not in noted]  # what these settings wrote may be written again
        taken = [path for file in foreign for path in self._paths(file) if os.path.lexists(path)]
        if taken and not self.overwrite:
            raise BadInputError(
                f"{taken[0]} is there already, and this run did not write it; choose another folder with --out, or "
                "give --overwrite"
            )
        if taken:
            self._forget_others()
        remove_partials(*(path for file in left if file.name in noted for path in self._paths(file)))
        return left

    def check_names(self, files: Sequence[AudioFile]) -> None:
        """No two of all the files, in all processes, are written to one place."""
        planned: dict[Path, AudioFile] = {}
        for file in files:
            for path in self._paths(file):
                if (other := planned.setdefault(path, file)) is not file:
                    above = os.path.commonpath([os.path.abspath(f.path) for f in (other, file)])  # noqa: PTH100
                    raise BadInputError(
                        f"{other.path} and {file.path} would both be written to {path}; name the folder above them, "
                        f"{above}, which keeps their paths, or transcribe one of them into another folder"
                    )

    def _forget_others(self) -> None:
        """Runs with other settings no longer have their transcripts here."""
        own = self.journal.name.rsplit("-", 1)[0]
        for journal in self.journal.parent.glob("*.jsonl"):
            if not journal.name.startswith(own):
                journal.unlink(missing_ok=True)

    def write(self, outcome: Outcome) -> None:
        """Notes a file, writes its transcripts, notes that it is done; one that failed is tried again next time."""
        if outcome.transcript is None:
            return
        name = outcome.file.name
        self._note(name, None)
        write_transcript(outcome.transcript, self.folder, name, self.formats)
        if outcome.baseline is not None:
            write_transcript(outcome.baseline, self.folder, f"{name}.{BASELINE}", self.formats)
        self._note(name, _state(outcome.file))

    def _note(self, name: str, state: list[int] | None) -> None:
        """One line of the journal; it begins a line of its own, since a kill may have cut off the one before."""
        if self._stream is None:
            self._stream = self._held.enter_context(open_journal(self.journal))
        begun = state is None  # must not be lost in a power cut that leaves the transcripts
        append(self._stream, f"\n{json.dumps({'name': name, 'state': state})}".encode(), sync=begun)

    def _paths(self, file: AudioFile) -> list[Path]:
        names = [file.name, f"{file.name}.{BASELINE}"] if self.baseline else [file.name]
        return [self.folder / f"{name}.{suffix}" for name in names for suffix in self.formats]

    def _noted(self) -> dict[str, list[int] | None]:
        """The files that runs with the same settings wrote, in all processes, with the state of the audio; None for one
        that was begun and perhaps not finished.
        """
        pattern = f"{self.journal.name.rsplit('-', 1)[0]}-*.jsonl"
        noted: dict[str, list[int] | None] = {}
        for journal in sorted(self.journal.parent.glob(pattern)):
            for line in journal.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    row = json.loads(line)
                    noted[row["name"]] = row["state"]
                except (ValueError, KeyError, TypeError):
                    continue  # a line that a kill cut off
        return noted

    def _whole(self, file: AudioFile) -> bool:
        return all(path.is_file() for path in self._paths(file))


def _state(file: AudioFile) -> list[int]:
    """Size and time of the audio: one that has changed is transcribed again."""
    try:
        status = file.path.stat()
    except OSError:
        return [-1, -1]
    return [status.st_size, status.st_mtime_ns]
