"""What the page shows of a recording: without and with the domain, word by word why, and lists to rank again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ilme.evaluation.contributions import label_shares
from ilme.fusion import SCORERS
from ilme.recogniser.recogniser import Encoded, Recogniser
from ilme.recogniser.windows import Window, is_silent
from ilme.recogniser.word_times import words_of_labels
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.rescoring import SequenceScorer, complete, finite
from ilme.serve.tasks import NOTHING, Settings, Shelf
from ilme.workflows.transcribe import Job

__all__ = ["Compare", "candidates", "why"]

PARTS = ("asr", "lm", "subtracted", "phrases")


@dataclass(frozen=True)
class Compare:
    """Windows of one recording, each searched with the domain and without.

    Attributes:
        name, job: The domain.
        windows: What is to be heard.
        settings: Phrases to listen for.
    """

    name: str
    job: Job
    windows: Sequence[Window]
    settings: Settings = NOTHING

    def run(self, shelf: Shelf) -> dict[str, Any]:
        recogniser = shelf.recogniser(self.name, self.job).with_phrases(self.settings.phrases)
        found = []
        for window in self.windows:
            heard = not is_silent(window.samples) and shelf.is_spoken(window, recogniser.rate)
            found.append(_compared(recogniser, window) if heard else _nothing(window))
        return {"weights": asdict(recogniser.weights), "exponent": recogniser.length_exponent, "windows": found}


def _nothing(window: Window) -> dict[str, Any]:
    return {"start": window.start, "end": window.end, "baseline": "", "candidates": [], "words": []}


def _compared(recogniser: Recogniser, window: Window) -> dict[str, Any]:
    encoded = recogniser.encode([window.samples])
    (fused,), (plain,) = recogniser.search(encoded), recogniser.without_fusion().search(encoded)
    if not fused or not plain:
        return _nothing(window)
    words = recogniser.words(encoded, fused)
    reasons = why(recogniser, encoded, fused[0])
    timed: list[dict[str, Any]] = [
        {"start": window.start + w.start, "end": window.start + w.end, "confidence": w.confidence} for w in words
    ]
    return {
        "start": window.start,
        "end": window.end,
        "baseline": plain[0].text,
        "candidates": candidates(recogniser, fused, plain),
        "words": [(timed[k] if k < len(timed) else {}) | reason for k, reason in enumerate(reasons)],
    }


def candidates(recogniser: Recogniser, fused: NBest, plain: NBest) -> list[dict[str, Any]]:
    """Both lists as one, the domain's choice first, every text once, with all the unweighted scores."""
    unique = {h.text: h for h in (*plain[::-1], *fused[::-1])}
    both = list(unique.values())[::-1]
    weights, ends = recogniser.weights, recogniser.ends
    scorers = {"lm": recogniser.lm, "subtracted": recogniser.smoothed(weights), "phrases": recogniser.phrases}
    used = {n: SequenceScorer(s, finish=ends[n]) for n in SCORERS if (s := scorers[n]) is not None}
    scored = finite(complete({"": both}, **used))[""]
    scored.sort(key=lambda h: h.text != fused[0].text)
    return [{"text": h.text} | {k: round(v, 4) for k, v in asdict(h.scores).items()} for h in scored]


def why(recogniser: Recogniser, encoded: Encoded, chosen: Hypothesis) -> list[dict[str, Any]]:
    """For each word of a hypothesis: what the model, the LM, the internal LM and the phrases give it, unweighted."""
    places, words = words_of_labels(chosen.tokens, recogniser.tokenizer)
    sums = [dict.fromkeys(PARTS, 0.0) for _ in words]
    for place, share in zip(places, label_shares(recogniser, encoded, chosen.tokens), strict=False):
        for name in PARTS:
            sums[place][name] = round(sums[place][name] + getattr(share, name), 3)
    return [{"word": word, **parts} for word, parts in zip(words, sums, strict=True)]
