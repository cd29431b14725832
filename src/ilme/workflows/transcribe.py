"""Many audio files to text, as one job.

    files → windows at quiet places → batches over files, by seconds of audio → transcripts, written as files finish

A file that cannot be read is reported and costs no other file its transcript. With an output folder a run that was
killed goes on where it was (`ilme.workflows.transcribe_output`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ilme.data.audio import audio_info
from ilme.data.audio_files import AudioFile, find_audio
from ilme.data.audio_stream import AudioStream
from ilme.errors import BadInputError, IlmeError
from ilme.lm.phrase_list import read_phrases
from ilme.recogniser.domain import CARD, load_domain
from ilme.recogniser.loading import LoadModel, Parts, describe, load_model, load_recogniser
from ilme.recogniser.options import changed
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.transcripts import Segment, Transcript
from ilme.recogniser.windows import Window, stream_windows
from ilme.runtime.files import file_hash
from ilme.runtime.formats import Format
from ilme.runtime.memory import give_back_memory
from ilme.workflows.options import TranscribeOptions
from ilme.workflows.transcribe_output import Outcome, Output

__all__ = [
    "Job",
    "Outcome",
    "TranscribeOptions",
    "in_batches",
    "recognise_windows",
    "run_job",
    "take_batch",
    "transcribe",
    "transcribe_files",
]

AHEAD = 4  # batches of windows that are read before the next is chosen: enough to find windows of like length
Progress = Callable[[float, float], None]  # (seconds done, of how many)
Waiting = TypeVar("Waiting")
Found = tuple[list[Segment], list[Segment] | None] | str  # of a window, with fusion and without; or why there is none
Search = Callable[[Iterable[Sequence[Window]]], Iterator[list[Found]]]


@dataclass(frozen=True)
class Job:
    """All that another process needs to load the recogniser: a domain folder, or a model as it is.

    Attributes:
        domain: The domain folder; empty for a model without one.
        model: The model, or where a domain's model is now.
        device: Where everything runs.
        format: Format of the weights on a CPU.
        timestamps: Let Whisper time each sentence.
        model_options: What the model's own kind takes, such as a language; of a domain, the ranks alone.
        phrases: A file of names and terms that may be said, beside those of the domain; empty for none.
        ctc_weight: Share of the CTC layer's score beside an attention decoder's; None: as the domain says.
    """

    domain: str = ""
    model: str = ""
    device: str = "cpu"
    format: Format = "float32"
    timestamps: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)
    phrases: str = ""
    ctc_weight: float | None = None

    def __post_init__(self) -> None:
        if not self.domain and not self.model:
            raise BadInputError("name a domain folder (`ilme adapt` writes one) or a model")
        if self.domain and (told := sorted(set(self.model_options) - {"ranks"})):
            raise BadInputError(f"{told[0]} was chosen when the domain folder was made; leave it out, or adapt again")

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
            return load_domain(
                self.domain,
                model=self.model,
                device=self.device,
                format=self.format,
                timestamps=self.timestamps,
                ranks=self.model_options.get("ranks", ""),
                load=load,
            )
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
    format: Format = "float32",
    phrases: str | Path = "",
    timestamps: bool = False,
    model_options: Mapping[str, Any] | None = None,
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
        format: Format of the weights on a CPU.
        phrases: A file of names and terms that may be said, one a line.
        timestamps: Let Whisper time each sentence.
        model_options: What the model's own kind takes, such as a language; a domain has its own.
        options: Batches, baseline, words.
        overwrite: Replace transcripts that another call wrote.
        progress: Called with (seconds done, of how many).

    Returns:
        What became of each file that was transcribed now; files that an earlier call had finished are not among them.
    """
    job = Job(str(domain), str(model), device, format, timestamps, dict(model_options or {}), str(phrases))
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

    def search(batches: Iterable[Sequence[Window]]) -> Iterator[list[Found]]:
        for windows in batches:
            found = recognise_windows(recogniser, windows, options.baseline, options.words)
            give_back_memory()
            yield found

    return in_batches(files, recogniser.rate, recogniser.window, search, options, progress)


def in_batches(
    files: Sequence[AudioFile],
    rate: int,
    longest: float,
    search: Search,
    options: TranscribeOptions,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """What becomes of each file, as files finish, whoever searches its windows.

    Args:
        files: The files.
        rate: Samples a second of a window.
        longest: Seconds that a window may have.
        search: Batches of windows to what `recognise_windows` gives for each, in their order. It may take some batches
            before it gives the first result.
        options: Batches.
        progress: Called with (seconds done, of how many).
    """
    total = sum(map(_seconds, files))
    open_files = [_OpenFile(file) for file in files]
    taken: deque[list[_Part]] = deque()
    done = 0.0

    def batches() -> Iterator[list[Window]]:
        for batch in _batches(rate, longest, open_files, options):
            taken.append(batch)
            yield [part.window for part in batch]

    for found in search(batches()):
        for part, segments in zip(taken.popleft(), found, strict=True):
            part.file.add(part.place, segments)
            done += part.window.end - part.window.start
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

    def parts(self, rate: int, longest: float) -> Iterator[_Part]:
        """Its windows as they are read; what cannot be read is an error of this file alone."""
        place = 0
        try:
            stream = AudioStream(self.file.path, rate)
            self.seconds = stream.seconds
            for window in stream_windows(stream, rate, longest):
                yield _Part(self, place, window)
                place += 1
        except (IlmeError, OSError) as error:
            self.error = str(error)
        self.windows = place

    def add(self, place: int, segments: Found) -> None:
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


def _batches(
    rate: int, longest: float, files: Iterable[_OpenFile], options: TranscribeOptions
) -> Iterator[list[_Part]]:
    """Windows of like length together, of as many files as it takes; those that were read first do not wait long."""
    waiting: list[_Part] = []
    held = 0.0
    for part in (part for file in files for part in file.parts(rate, longest)):
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
) -> list[Found]:
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
    """What becomes of each file, in the order of the files.

    Args:
        job: What every process loads.
        files: The files.
        options: Batches, baseline, words.
        progress: Called with (seconds done, of how many).
        ray: Address of a Ray cluster that does the work; empty for this machine.
        workers: Processes that share it; 1 on this machine is this one.
    """
    if not files:
        return iter(())
    if ray:
        from ilme.workflows.transcribe_ray import transcribe_over_ray

        return _in_order(files, transcribe_over_ray(job, files, options, ray, workers, progress))
    if workers > 1:
        from ilme.workflows.transcribe_workers import transcribe_in_processes

        return _in_order(files, transcribe_in_processes(job, files, options, workers, progress))
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
