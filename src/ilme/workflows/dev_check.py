"""Dev speech that is partly wrong: recordings cut badly, or with another text.

Weights that are tuned on such utterances are tuned on noise: where a transcript holds words that are not in the audio,
only an LM that invents words looks right. An utterance is set aside when no hypothesis can explain its transcript:

    every hypothesis of its n-best list has more than half of the transcript's words wrong, and
    the model gives the transcript far less than its own best guess:
        [log P(guess | x) / (|guess| + 1) − log P(transcript | x) / (|transcript| + 1)]  >  usual + MARGIN nats

where `usual` is the median of that difference over utterances that the model has nearly right: what the transcripts'
style (no case, no punctuation) costs. A domain whose words the model does not know is not set aside: there the model
has nothing right to compare with, or the transcript is about as likely as what it guesses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ilme.data.utterances import Utterance
from ilme.evaluation.contributions import forced
from ilme.evaluation.metrics import NormaliserName, measure
from ilme.recogniser.recogniser import Recogniser
from ilme.search.hypothesis import NBest

__all__ = ["Unexplained", "unexplained"]

HALF = 50.0  # per cent of the words
NEARLY_RIGHT = 20.0
MARGIN = 1.4  # nats a label; on telephone calls what was misheard has up to 1.1, what is not in the audio from 1.5
COMPARED = 40  # utterances that are nearly right whose difference is measured
FEWEST = 5  # of those; with fewer nothing can be said
MOST = 0.5  # of dev: where more seems wrong, it is the model that is wrong
Write = Callable[[str], str]


@dataclass(frozen=True)
class Unexplained:
    """A dev utterance that is set aside.

    Attributes:
        id: Its name.
        text: Its transcript.
        guess: What the model heard.
        excess: By how many nats a label the transcript is less likely than usual.
    """

    id: str
    text: str
    guess: str
    excess: float

    @property
    def reason(self) -> str:
        return (
            f"the model heard {self.guess!r} where the transcript has {self.text!r}, {self.excess:.1f} nats a label "
            "less likely than is usual here: cut badly, or another text"
        )


def unexplained(
    recogniser: Recogniser,
    dev: Sequence[Utterance],
    lists: Mapping[str, NBest],
    normaliser: NormaliserName,
    write: Write,
) -> list[Unexplained]:
    """The utterances whose transcript no hypothesis can explain.

    Args:
        recogniser: The model, as it is.
        dev: The utterances.
        lists: Its n-best lists of them.
        normaliser: Applied to texts before errors are counted.
        write: A transcript in the style that the model writes.
    """
    dev = [u for u in dev if u.seconds <= recogniser.window]  # a transcript cannot be forced onto several windows
    if not dev:
        return []

    def least(u: Utterance) -> float:
        """The error rate of the best hypothesis in the list."""
        rates = [measure({u.id: u.text}, {u.id: h.text}, normaliser_name=normaliser).rate for h in lists[u.id]]
        return min(rates, default=100.0)

    rates = {u.id: least(u) for u in dev}
    right = [u for u in dev if rates[u.id] <= NEARLY_RIGHT][:COMPARED]
    wrong = [u for u in dev if rates[u.id] > HALF]
    if len(right) < FEWEST or not wrong or len(wrong) > MOST * len(dev):
        return []
    usual = statistics.median(_difference(recogniser, u, lists[u.id], write) for u in right)
    found = []
    for u in wrong:
        excess = _difference(recogniser, u, lists[u.id], write) - usual
        if excess > MARGIN:
            found.append(Unexplained(u.id, u.text, lists[u.id][0].text if lists[u.id] else "", excess))
    return found


def _difference(recogniser: Recogniser, u: Utterance, nbest: NBest, write: Write) -> float:
    """By how many nats a label the transcript is less likely than the model's best guess."""
    encoded = recogniser.encode([u.samples(recogniser.rate)])
    said = forced(recogniser, encoded, recogniser.tokenizer.encode(write(u.text))).scores.asr
    length = len(recogniser.tokenizer.encode(write(u.text)))
    best = max((h.scores.asr / (len(h.tokens) + 1) for h in nbest), default=0.0)
    return best - said / (length + 1)
