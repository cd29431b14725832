"""Many audio files to text, as one job.

    files → windows at quiet places → batches over files, by seconds of audio → transcripts, written as files finish

A file that cannot be read is reported and costs no other file its transcript. With an output folder the job keeps a
journal: a run that was killed goes on where it was, and what another run wrote is not overwritten unasked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, cast

from ilme.data.audio import audio_info
from ilme.data.audio_files import AudioFile, find_audio
from ilme.data.audio_stream import AudioStream
from ilme.errors import BadInputError, IlmeError
from ilme.lm.phrase_list import read_phrases
from ilme.recogniser.domain import CARD, load_domain
from ilme.recogniser.loading import LoadModel, Parts, describe, load_model, load_recogniser
from ilme.recogniser.options import changed
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.store import identity
from ilme.recogniser.transcripts import Segment, Transcript, check_format, write_transcript
from ilme.recogniser.windows import Window, stream_windows
from ilme.runtime.files import append, file_hash, open_journal, remove_partials
from ilme.runtime.locks import only_run
from ilme.runtime.memory import give_back_memory
from ilme.workflows.options import TranscribeOptions

__all__ = [
    "Job",
    "Outcome",
    "Output",
    "TranscribeOptions",
    "recognise_windows",
    "run_job",
    "take_batch",
    "transcribe",
    "transcribe_files",
]

BASELINE = "baseline"  # between the name and the suffix of a transcript without fusion
JOURNAL = ".ilme-transcribe"
AHEAD = 4  # batches of windows that are read before the next is chosen: enough to find windows of like length
Progress = Callable[[float, float], None]  # (seconds done, of how many)
Waiting = TypeVar("Waiting")


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


@dataclass(frozen=True)
class Job:
    """All that another process needs to load the recogniser: a domain folder, or a model as it is.

    Attributes:
        domain: The domain folder; empty for a model without one.
        model: The model, or where a domain's model is now.
        device: Where everything runs.
        format: Of the weights on a CPU.
        timestamps: Let Whisper time each sentence.
        model_options: What the model's own kind takes, such as a language.
        phrases: A file of names and terms that may be said, beside those of the domain; empty for none.
        ctc_weight: Share of the CTC layer's score beside an attention decoder's; None: as the domain says.
    """

    domain: str = ""
    model: str = ""
    device: str = "cpu"
    format: Any = "float32"
    timestamps: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)
    phrases: str = ""
    ctc_weight: float | None = None

    def __post_init__(self) -> None:
        if not self.domain and not self.model:
            raise BadInputError("name a domain folder (`ilme adapt` writes one) or a model")

    def load(self, load: LoadModel = load_model) -> Recogniser:
        """The recogniser.

        Args:
            load: Loads the model; a `SharedModels` for recognisers that are to share its weights in memory.
        """
        phrases = read_phrases(self.phrases) if self.phrases else ()
        recogniser = self._load(load).with_phrases(phrases)
        if self.ctc_weight is not None:
            recogniser.options = changed(recogniser.options, {"ctc_weight": self.ctc_weight})
        return recogniser

    def _load(self, load: LoadModel) -> Recogniser:
        if self.domain:
            how = {"device": self.device, "format": self.format, "timestamps": self.timestamps}
            return load_domain(self.domain, model=self.model, load=load, **how)
        options = dict(self.model_options) | ({"timestamps": True} if self.timestamps else {})
        return load_recogniser(Parts(self.model, device=self.device, format=self.format), None, options, load)

    def describe(self) -> dict[str, Any]:
        """What a journal must match: the domain by its card, the model by its weights."""
        card = Path(self.domain) / CARD
        named = describe(Parts(self.model)) if self.model else {}
        return {
            "domain": file_hash(card) if self.domain and card.is_file() else self.domain,
            "model": named.get("model_content", self.model),
            "format": self.format,
            "timestamps": self.timestamps,
            "model_options": dict(self.model_options),
            **({} if self.ctc_weight is None else {"ctc_weight": self.ctc_weight}),
            **({"phrases": file_hash(Path(self.phrases))} if self.phrases and Path(self.phrases).is_file() else {}),
        }


def transcribe(
    audio: str | Path | Sequence[str | Path],
    *,
    domain: str | Path = "",
    model: str | Path = "",
    out: str | Path | None = None,
    formats: Sequence[str] = ("txt",),
    device: str = "cpu",
    phrases: str | Path = "",
    options: TranscribeOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Transcribes files, folders or globs with a domain or with a model as it is.

    Args:
        audio: Files, folders or globs.
        domain: A domain folder.
        model: A model, if there is no domain; or where the domain's model is now.
        out: Where transcripts are written as they finish; a killed call goes on where it was.
        formats: Any of txt, json, srt, vtt.
        device: Where everything runs.
        phrases: A file of names and terms that may be said, one a line.
        options: Batches, baseline.
        overwrite: Replace transcripts that another call wrote.
        progress: Called with (seconds done, of how many).

    Returns:
        What became of each file that was transcribed now; files that an earlier call had finished are not among them.
    """
    job = Job(str(domain), str(model), device, phrases=str(phrases))
    files = find_audio([audio] if isinstance(audio, str | Path) else audio)
    options = options or TranscribeOptions()
    if out is None:
        return list(run_job(job, files, options, progress))
    with Output(Path(out), job.describe(), formats, options, overwrite) as output:
        output.check_names(files)
        left = output.left(files)
        outcomes = []
        for outcome in run_job(job, left, options, progress):
            output.write(outcome)
            outcomes.append(outcome)
        return outcomes


# --- the work ---------------------------------------------------------------------------------------------------------


def transcribe_files(
    recogniser: Recogniser,
    files: Sequence[AudioFile],
    options: TranscribeOptions | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """What becomes of each file, as files finish."""
    options = options or TranscribeOptions()
    total = sum(map(_seconds, files))
    open_files = [_OpenFile(file) for file in files]
    done = 0.0
    for batch in _batches(recogniser, open_files, options):
        found = recognise_windows(recogniser, [part.window for part in batch], options.baseline, options.words)
        for part, segments in zip(batch, found, strict=True):
            part.file.add(part.place, segments)
            done += part.window.end - part.window.start
        give_back_memory()
        if progress is not None:
            progress(min(done, total), total)
        yield from _finished(open_files)
    yield from _finished(open_files)


@dataclass(frozen=True)
class _Part:
    """One window of one file."""

    file: _OpenFile
    place: int
    window: Window


class _OpenFile:
    """A file whose windows are read and recognised; it is finished when all of them have come back."""

    def __init__(self, file: AudioFile) -> None:
        self.file = file
        self.seconds = 0.0
        self.windows = -1  # how many there are; −1 while they are read
        self.found: dict[int, tuple[list[Segment], list[Segment] | None]] = {}
        self.error = ""
        self.told = False

    def parts(self, recogniser: Recogniser) -> Iterator[_Part]:
        """Its windows as they are read; what cannot be read is this file's error and nobody else's."""
        place = 0
        try:
            stream = AudioStream(self.file.path, recogniser.rate)
            self.seconds = stream.seconds
            for window in stream_windows(stream, recogniser.rate, recogniser.window):
                yield _Part(self, place, window)
                place += 1
        except (IlmeError, OSError) as error:
            self.error = str(error)
        self.windows = place

    def add(self, place: int, segments: tuple[list[Segment], list[Segment] | None] | str) -> None:
        if isinstance(segments, str):
            self.error = self.error or segments
        else:
            self.found[place] = segments

    @property
    def finished(self) -> bool:
        return bool(self.error) or self.windows == len(self.found)

    def outcome(self) -> Outcome:
        if self.error:
            return Outcome(self.file, error=self.error)
        ordered = [self.found[place] for place in range(self.windows)]
        source = str(self.file.path).encode("utf-8", "backslashreplace").decode()  # a name need not be UTF-8
        fused = tuple(s for segments, _ in ordered for s in segments)
        plain = [s for _, segments in ordered for s in segments or ()]
        baseline = Transcript(tuple(plain), self.seconds, source) if any(b is not None for _, b in ordered) else None
        return Outcome(self.file, Transcript(fused, self.seconds, source), baseline)


def _seconds(file: AudioFile) -> float:
    """As the header says; 0 for what cannot be read."""
    try:
        return audio_info(file.path).seconds
    except (IlmeError, OSError):
        return 0.0


def _batches(recogniser: Recogniser, files: Iterable[_OpenFile], options: TranscribeOptions) -> Iterator[list[_Part]]:
    """Windows of like length together, of as many files as it takes; those that were read first do not wait long."""
    waiting: list[_Part] = []
    held = 0.0
    for part in (part for file in files for part in file.parts(recogniser)):
        waiting.append(part)
        held += _length(part)
        while held >= AHEAD * options.batch_seconds or len(waiting) >= AHEAD * options.batch_size:
            batch = take_batch(waiting, _length, options)
            held -= sum(map(_length, batch))
            yield batch
    while waiting:
        yield take_batch(waiting, _length, options)


def take_batch(waiting: list[Waiting], length: Callable[[Waiting], float], options: TranscribeOptions) -> list[Waiting]:
    """What waits longest, and what is nearest to it in seconds of audio; taken out of `waiting`."""
    first = waiting[0]
    near = sorted(waiting, key=lambda w: (w is not first, abs(length(w) - length(first))))
    batch: list[Waiting] = []
    longest = 0.0
    for one in near[: options.batch_size]:
        longest = max(longest, length(one))
        if batch and longest * (len(batch) + 1) > options.batch_seconds:
            break
        batch.append(one)
    taken = {id(one) for one in batch}
    waiting[:] = [one for one in waiting if id(one) not in taken]
    return batch


def _length(part: _Part) -> float:
    return part.window.end - part.window.start


def recognise_windows(
    recogniser: Recogniser, windows: Sequence[Window], baseline: bool = False, words: bool = False
) -> list[tuple[list[Segment], list[Segment] | None] | str]:
    """The segments of each window, with fusion and without; a message in place of those that cannot be searched.

    If a batch fails, its windows are tried one by one, so that one odd recording fails alone.
    """
    try:
        fused = recogniser.recognise(windows, words)
        plain = recogniser.without_fusion().recognise(windows, words) if baseline else [None] * len(windows)
        return list(zip(fused, plain, strict=True))
    except (IlmeError, RuntimeError, ValueError, IndexError) as error:
        if len(windows) == 1:
            return [f"it could not be recognised: {error}"]
        return [found for window in windows for found in recognise_windows(recogniser, [window], baseline, words)]


def _finished(files: Sequence[_OpenFile]) -> Iterator[Outcome]:
    for file in files:
        if file.finished and not file.told:
            file.told = True
            yield file.outcome()
            file.found = {}


def run_job(
    job: Job,
    files: Sequence[AudioFile],
    options: TranscribeOptions,
    progress: Progress | None = None,
    ray: str = "",
    workers: int = 1,
) -> Iterator[Outcome]:
    """What becomes of each file, in the order of the files; in this process, or over the workers of a Ray cluster."""
    if not files:
        return iter(())
    if ray:
        from ilme.workflows.transcribe_ray import transcribe_over_ray

        return _in_order(files, transcribe_over_ray(job, files, options, ray, workers, progress))
    return _in_order(files, transcribe_files(job.load(), files, options, progress))


def _in_order(files: Sequence[AudioFile], outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Outcomes in the order of the files: one that is ready too soon waits for those before it."""
    ready: dict[AudioFile, Outcome] = {}
    due = iter(files)
    following = next(due)
    for outcome in outcomes:
        ready[outcome.file] = outcome
        while following in ready:
            yield ready.pop(following)
            following = next(due, AudioFile(Path(), ""))


# --- the output folder ------------------------------------------------------------------------------------------------


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
