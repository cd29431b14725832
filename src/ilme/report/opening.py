"""How the report opens: what the recommended method gained, in a sentence, and recordings to hear it on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ilme.errors import IlmeError
from ilme.evaluation.metrics import Edit, align
from ilme.evaluation.results import Results, System
from ilme.report.audio import data_uri

__all__ = ["CHOSEN", "Gain", "as_edits", "gains", "gather_opening", "recommended"]

RECOMMENDED = ("ILME + phrases", "ILME")  # the first of these that there is
FULL = {"DR": "Density Ratio"}
BETTER = {"BS": " It is best left alone here.", "SF": " Shallow Fusion is best here."}
CERTAIN = 0.05  # of a paired test, two-sided
CHOSEN = "recordings"  # what says in the provenance how the recordings were chosen
FROM_ONE_SET = 2  # recordings, where there are several test sets
KINDS = {"substitute": "s", "delete": "d", "insert": "i"}


def recommended(results: Results, model: str) -> System | None:
    """The method that is recommended, of those that a model was decoded with."""
    methods = {s.method: s for s in results.systems if s.model == model}
    return next((methods[name] for name in RECOMMENDED if name in methods), None)


@dataclass(frozen=True)
class Gain:
    """The recommended method of a model against the model as it is, on one test set.

    Attributes:
        results: The test set.
        before: The model as it is.
        after: The recommended method.
    """

    results: Results
    before: System
    after: System

    @property
    def sentence(self) -> str:
        """Of 100 errors so many are gone; and what other methods did, if one of them did better."""
        results, method = self.results, self.after.method
        errors = {s.method: results.measurements[s.name].total.errors for s in self._systems()}
        first, own = errors["BS"], errors[method]
        if not first:
            return f"On {results.name} {self.before.model} makes no error."
        said = f"Of every 100 word errors that {self.before.model} makes on {results.name}, "
        said += f"{method} {_taken(first, own)}{self._doubt()}"
        told = f"{said}; Shallow Fusion {_taken(first, errors['SF'])}." if "SF" in errors else f"{said}."
        best = min(errors, key=lambda name: errors[name])
        if errors[best] < own:
            told += BETTER.get(best) or f" Best here is {FULL.get(best, best)}, which {_taken(first, errors[best])}."
        return told

    def _doubt(self) -> str:
        """What is to be said where the utterances are too few to tell."""
        pair = self.results.comparison(self.after.name, self.before.name)
        if pair is None or pair.p_bootstrap < CERTAIN:
            return ""
        words = self.results.measurements[self.after.name].total.words
        return f" (in {words:,} words that may be chance, p {pair.p_bootstrap:.2f})"

    def _systems(self) -> list[System]:
        return [s for s in self.results.systems if s.model == self.before.model]

    def changes(self) -> Iterator[tuple[int, int]]:
        """For each utterance how many errors fewer, and its place."""
        before, after = (self.results.measurements[s.name].utterances for s in (self.before, self.after))
        for k, (a, b) in enumerate(zip(before, after, strict=True)):
            yield a.counts.errors - b.counts.errors, k


def gains(sets: Sequence[Results]) -> list[Gain]:
    """One for each test set and model that has both systems."""
    found = []
    for results in sets:
        for model in dict.fromkeys(s.model for s in results.systems):
            before, after = results.baseline(model), recommended(results, model)
            if before is not None and after is not None:
                found.append(Gain(results, before, after))
    return found


def gather_opening(sets: Sequence[Results], recordings: int = 3) -> dict[str, Any]:
    """Sentences of the first model, and recordings on which most was gained, with the text before and after."""
    found = gains(sets)
    shown = [gain for gain in found if gain.before.model == found[0].before.model]
    fewer = sum(change > 0 for gain in shown for change, _ in gain.changes())
    more = sum(change < 0 for gain in shown for change, _ in gain.changes())
    count = sum(len(gain.results.references) for gain in shown)
    heard: list[dict[str, Any]] = []
    for gain in shown:
        most = min(recordings - len(heard), FROM_ONE_SET if len(shown) > 1 else recordings)
        heard += list(_recordings(gain, most))
    note = f"Those of {count} that gained most. {fewer} have fewer errors than before, {more} have more."
    chosen = next((str(gain.results.provenance[CHOSEN]) for gain in shown if CHOSEN in gain.results.provenance), "")
    claims = [gain.sentence for gain in shown]
    return {"claims": claims, "recordings": heard, "note": note if heard else "", "chosen": chosen}


def _recordings(gain: Gain, most: int) -> Iterator[dict[str, Any]]:
    ranked = sorted(((change, k) for change, k in gain.changes() if change > 0), key=lambda c: (-c[0], c[1]))
    ids = list(gain.results.references)
    for _, k in ranked:
        reference = gain.results.references[ids[k]]
        if most <= 0:
            return
        if not reference.audio or not os.path.lexists(reference.audio):
            continue
        try:
            audio = data_uri(Path(reference.audio))
        except (IlmeError, OSError, RuntimeError):  # the transcripts below say what is wrong with it
            continue
        most -= 1
        said, before = _texts(gain.results, gain.before, k)
        _, after = _texts(gain.results, gain.after, k)
        yield {
            "set": gain.results.name,
            "id": ids[k],
            "audio": audio,
            "reference": said,
            "before": as_edits(said, before),
            "after": as_edits(said, after),
            "beforeName": gain.before.model,
            "afterName": f"with {gain.after.method}",
        }


def _texts(results: Results, system: System, k: int) -> tuple[str, str]:
    utterance = results.measurements[system.name].utterances[k]
    return utterance.reference, utterance.hypothesis


def as_edits(reference: str, hypothesis: str) -> list[str | list[str]]:
    """A text beside its reference: a word that is right as it is, an error as [kind, reference, hypothesis]."""
    return [_edit(e) for e in align(reference, hypothesis)]


def _edit(edit: Edit) -> str | list[str]:
    return edit.reference if edit.kind == "equal" else [KINDS[edit.kind], edit.reference, edit.hypothesis]


def _taken(first: int, now: int) -> str:
    """What became of 100 errors."""
    change = 100 * (first - now) / first
    if round(change) == 0:
        return "takes none away"
    return f"takes {change:.0f} away" if change > 0 else f"adds {-change:.0f}"
