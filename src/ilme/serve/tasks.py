"""What a worker is asked to do. A task travels to it, runs on its recognisers, and its result travels back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ilme.data.audio import Samples
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.shared_models import SharedModels
from ilme.recogniser.streaming import SpeechStream, can_stream
from ilme.recogniser.transcripts import Segment
from ilme.recogniser.windows import Window
from ilme.runtime.memory import bound_kernels, give_back_memory
from ilme.serve.voice import VoiceActivity
from ilme.workflows.transcribe import Job, recognise_windows

__all__ = ["NOTHING", "About", "Describe", "Failure", "Forget", "Hear", "Recognise", "Settings", "Shelf", "Task"]


KEPT = 64  # turns whose clients may have left


@dataclass(frozen=True)
class Failure:
    """In place of a result.

    Attributes:
        message: What went wrong, for the client.
    """

    message: str


@dataclass(frozen=True)
class About:
    """What the service must know of a domain.

    Attributes:
        kind: Of the model, such as `whisper`.
        rate: Samples a second that it wants.
        window: Seconds that it takes at once.
        language: That it writes.
        lm, subtracted, length: The fusion weights.
        streams: Whether it can hear on as audio comes.
    """

    kind: str
    rate: int
    window: float
    language: str
    lm: float
    subtracted: float
    length: float
    streams: bool = False


@dataclass(frozen=True)
class Settings:
    """What a request may ask of the search.

    Attributes:
        phrases: Names and terms to listen for.
        words: Whether words get times and confidences.
    """

    phrases: tuple[str, ...] = ()
    words: bool = False


NOTHING = Settings()  # was asked for


class Shelf:
    """The recognisers of one worker, each loaded when it is first asked for; those of one model share its weights.

    Args:
        voice_activity: Whether a model decides if anything is said.
    """

    def __init__(self, voice_activity: bool = True) -> None:
        bound_kernels()
        self._loaded: dict[str, tuple[Job, Recogniser]] = {}
        self.models = SharedModels()
        self.voice = VoiceActivity() if voice_activity else None
        self.kept: dict[str, Any] = {}  # what a task leaves for the next, by a name of its own

    def recogniser(self, name: str, job: Job) -> Recogniser:
        known = self._loaded.get(name)
        if known is None or known[0] != job:
            known = self._loaded[name] = job, job.load(self.models)
        return known[1]

    def keep(self, name: str, what: Any) -> None:
        """Keeps something for the next task; where there is too much, what was not asked for longest goes."""
        self.kept.pop(name, None)
        self.kept[name] = what
        while len(self.kept) > KEPT:
            self.kept.pop(next(iter(self.kept)))

    def is_spoken(self, window: Window, rate: int) -> bool:
        return self.voice is None or self.voice.is_spoken(window.samples, rate)


class Task(Protocol):
    """Something to do on a shelf."""

    def run(self, shelf: Shelf) -> Any: ...


@dataclass(frozen=True)
class Describe:
    """Loads a domain and says what it is."""

    name: str
    job: Job

    def run(self, shelf: Shelf) -> About:
        recogniser = shelf.recogniser(self.name, self.job)
        options = getattr(recogniser.model, "options", None)
        weights = recogniser.weights
        return About(
            kind=str(getattr(recogniser.model, "kind", "own")),
            rate=recogniser.rate,
            window=recogniser.window,
            language=str(getattr(options, "language", "") or "en"),
            lm=weights.lm,
            subtracted=weights.subtracted,
            length=weights.length,
            streams=can_stream(recogniser),
        )


@dataclass(frozen=True)
class Recognise:
    """Windows of one domain to segments; of several recordings, if they came together.

    Attributes:
        name, job: The domain.
        windows: What is to be heard.
        settings: What was asked for; the same for all of them.
    """

    name: str
    job: Job
    windows: Sequence[Window]
    settings: Settings = NOTHING

    def run(self, shelf: Shelf) -> list[list[Segment] | Failure]:
        recogniser = shelf.recogniser(self.name, self.job).with_phrases(self.settings.phrases)
        spoken = [w for w in self.windows if shelf.is_spoken(w, recogniser.rate)]
        results = recognise_windows(recogniser, spoken, words=self.settings.words) if spoken else ()
        give_back_memory()
        found = dict(zip(map(id, spoken), results, strict=True))
        return [self._result(window, found.get(id(window))) for window in self.windows]

    @staticmethod
    def _result(window: Window, found: tuple[list[Segment], list[Segment] | None] | str | None) -> Any:
        if found is None:
            return [Segment(window.start, window.end, "")]
        return Failure(found) if isinstance(found, str) else found[0]


@dataclass(frozen=True)
class Hear:
    """The next samples of a turn, by a model that streams: its text so far, or None if its beginning is not known.

    Attributes:
        turn: The turn's name.
        name, job: The domain.
        samples: What comes next, at the model's rate.
        start: How many samples came before.
        last: Whether the turn ends with them.
        settings: What was asked for.
    """

    turn: str
    name: str
    job: Job
    samples: Samples
    start: int
    last: bool
    settings: Settings = NOTHING

    def run(self, shelf: Shelf) -> str | None:
        stream = shelf.kept.get(self.turn)
        if not self.start:
            stream = SpeechStream(shelf.recogniser(self.name, self.job).with_phrases(self.settings.phrases))
        if stream is None or stream.samples != self.start:
            return None
        shelf.keep(self.turn, stream)
        text = str(stream.feed(self.samples))
        if not self.last:
            return text
        del shelf.kept[self.turn]
        return str(stream.finish()[0].text)


@dataclass(frozen=True)
class Forget:
    """Drops what was kept of a turn that was given up."""

    turn: str

    def run(self, shelf: Shelf) -> None:
        shelf.kept.pop(self.turn, None)
