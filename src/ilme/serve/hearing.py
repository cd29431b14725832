"""One turn of a realtime session, heard while it lasts and once more at its end.

A transducer that reads in one direction hears each sample once (`ilme.recogniser.streaming`) and its text grows letter
by letter; every other model hears the turn so far again and again, and its last word is often cut off. So of the first
letters are sent, of the others whole words: those that two hearings, one after the other, have alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ilme.data.audio import Samples, resample
from ilme.errors import IlmeError
from ilme.recogniser.windows import Window
from ilme.serve.service import Service
from ilme.serve.tasks import About, Failure, Forget, Hear, Settings
from ilme.serve.voice import RATE

__all__ = ["Agreement", "HearingError", "Turn"]

STEP = {True: 0.08, False: 0.6}  # seconds of new audio before the next hearing: of a model that streams, of another
LONGEST_STREAM = 120.0  # seconds of a turn of a model that streams; others hear one window


class HearingError(IlmeError):
    """A turn could not be heard."""


class Agreement:
    """What two hearings in a row have alike, from the beginning.

    Args:
        letters: Whether letters are compared, or whole words.
    """

    def __init__(self, letters: bool = False) -> None:
        self.letters = letters
        self.sent = ""
        self._before: str | None = None

    def add(self, text: str) -> str:
        """What can be sent now, after one more hearing; empty if nothing can."""
        text = " ".join(text.split())
        before, self._before = self._before, text
        agreed = "" if before is None else self._common(before, text)
        if agreed.startswith(self.sent):
            delta = agreed[len(self.sent) :]
        else:  # what was sent turned out otherwise: go on with the word after it
            delta = "".join(f" {word}" for word in agreed.split()[len(self.sent.split()) :])
        self.sent += delta
        return delta

    def rest(self, text: str) -> str:
        """What the whole text has beyond what was sent; empty if it begins otherwise."""
        text = " ".join(text.split())
        tail = text[len(self.sent) :]
        within = bool(self.sent and tail) and not self.letters and not tail[0].isspace()
        if within or not text.startswith(self.sent):
            return ""
        self.sent = text
        return tail

    def _common(self, one: str, two: str) -> str:
        if self.letters:
            return "".join(_alike(one, two)).rstrip()
        return " ".join(_alike(one.split(), two.split()))


def _alike(one: Sequence[str], two: Sequence[str]) -> Sequence[str]:
    """What both begin with."""
    different = (k for k, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return one[: next(different, min(len(one), len(two)))]


class Turn:
    """A turn that is being heard.

    Args:
        service: Whose domains hear it.
        name: The domain.
        about: What is known of it.
        settings: What was asked for.
        item: The turn's own name.
        start: Its first sample, from the beginning of the session, at RATE.
        audio: Its samples so far, at RATE.
        spoken: Whether somebody is known to speak in it.
    """

    def __init__(
        self,
        service: Service,
        name: str,
        about: About,
        settings: Settings,
        item: str,
        start: int,
        audio: Samples,
        spoken: bool,
    ) -> None:
        self.service, self.name, self.about, self.settings = service, name, about, settings
        self.item, self.start, self.spoken = item, start, spoken
        self.agreement = Agreement(letters=about.streams)
        self._pieces = [audio]
        self.samples = len(audio)
        self._heard = self._sent = 0  # samples that the last hearing had; that a streaming model has
        self._asked = False  # a streaming model
        self.over = False  # whether only its whole text is wanted any more

    @property
    def seconds(self) -> float:
        return self.samples / RATE

    @property
    def longest(self) -> float:
        """Seconds after which it must be cut."""
        return LONGEST_STREAM if self.about.streams else self.about.window

    @property
    def due(self) -> bool:
        """Whether enough is new for another hearing."""
        return self.spoken and self.samples - self._heard >= STEP[self.about.streams] * RATE

    @property
    def audio(self) -> Samples:
        """All of it."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        return self._pieces[0]

    def add(self, samples: Samples) -> None:
        self._pieces.append(samples)
        self.samples += len(samples)

    def cut(self, at: int) -> Samples:
        """Ends it after so many samples; gives what comes after them."""
        whole = self.audio
        self._pieces, self.samples = [whole[:at]], at
        return whole[at:]

    async def partial(self) -> str:
        """Hears what there is; what can be sent of it.

        A turn begins with audio from before it was known to be one: a model that streams hears it in two parts, so that
        two hearings can agree at once.
        """
        step, first = int(STEP[True] * RATE), not self._heard
        self._heard = heard = self.samples
        if self.about.streams and first and heard > step:
            self.agreement.add(await self._text(False, heard - step))
        return self.agreement.add(await self._text(False, heard))

    async def final(self) -> str:
        """The whole turn's text."""
        return await self._text(True, self.samples) if self.spoken else ""

    async def forget(self) -> None:
        """Drops what is kept of it."""
        if self._asked:
            await self.service.run_stream(Forget(self.item))

    async def _text(self, last: bool, samples: int) -> str:
        """The text of the first so many samples."""
        rate = self.about.rate
        audio = resample(self.audio[:samples], RATE, rate)
        if not self.about.streams:
            window = Window(0.0, len(audio) / rate, audio)
            found = await self.service.submit(self.name, window, self.settings)
            if isinstance(found, Failure):
                raise HearingError(found.message)
            return " ".join(s.text for s in found if s.text)
        if rate != RATE and not last:  # the last samples wait for those that follow
            audio = audio[: max(self._sent, len(audio) - rate // 50)]
        self._asked = True
        for start in (self._sent, 0):  # a worker that has lost the beginning gets all of it again
            task = Hear(self.item, self.name, self.service.jobs[self.name], audio[start:], start, last, self.settings)
            text = await self.service.run_stream(task)
            if isinstance(text, Failure):
                self._sent = 0
                raise HearingError(text.message)
            if text is not None:
                self._sent = len(audio)
                return str(text)
        raise HearingError("the beginning of the turn was lost twice")
