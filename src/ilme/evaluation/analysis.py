"""What a method changed: words fixed and broken, rare and frequent words, domain words, the reach of the
search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ilme.errors import BadInputError
from ilme.evaluation.metrics import ErrorCounts, Measurement, NormaliserName, align, count_each, normaliser
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import NBest

__all__ = [
    "WordChanges",
    "WordGroup",
    "by_frequency",
    "domain_words",
    "oracle",
    "search_errors",
    "word_changes",
    "word_recall",
]


@dataclass(frozen=True)
class WordChanges:
    """Reference words that one system has right and the other wrong.

    Attributes:
        fixed: Wrong before, right now.
        broken: Right before, wrong now.
        inserted: Words the new system inserts that the old did not.
        removed: Words the old system inserted that the new does not.
    """

    fixed: Counter[str]
    broken: Counter[str]
    inserted: Counter[str]
    removed: Counter[str]


@dataclass(frozen=True)
class WordGroup:
    """Reference words of one kind.

    Attributes:
        name: Of the kind.
        words: How many there are in the references.
        right: How many of them the system has right.
    """

    name: str
    words: int
    right: int

    @property
    def recall(self) -> float:
        """Per cent right; 0 where there are none."""
        return 100.0 * self.right / self.words if self.words else 0.0


@dataclass(frozen=True)
class SearchErrors:
    """Why utterances are wrong.

    Attributes:
        right: Utterances without an error.
        search: Wrong, and the search missed a hypothesis that scores better by its own measure.
        model: Wrong, and nothing that is known scores better: the scores themselves are at fault.
        missed: Ids of those where the search missed a better hypothesis.
    """

    right: int
    search: int
    model: int
    missed: tuple[str, ...]


def word_changes(before: Measurement, after: Measurement) -> WordChanges:
    """The words that `after` mends and spoils, counted at their places in the references."""
    _check_pair(before, after)
    changes = WordChanges(Counter(), Counter(), Counter(), Counter())
    for old, new in zip(before.utterances, after.utterances, strict=True):
        if old.hypothesis == new.hypothesis:
            continue
        right_before, extra_before = _outcome(old.reference, old.hypothesis)
        right_after, extra_after = _outcome(new.reference, new.hypothesis)
        for word, was, now in zip(old.reference.split(), right_before, right_after, strict=True):
            changes.fixed[word] += now and not was
            changes.broken[word] += was and not now
        changes.inserted.update(extra_after - extra_before)
        changes.removed.update(extra_before - extra_after)
    return WordChanges(*(+c for c in (changes.fixed, changes.broken, changes.inserted, changes.removed)))


def _outcome(reference: str, hypothesis: str) -> tuple[list[bool], Counter[str]]:
    """Which reference words are right, and which words were inserted."""
    edits = align(reference, hypothesis)
    right = [e.kind == "equal" for e in edits if e.kind != "insert"]
    return right, Counter(e.hypothesis for e in edits if e.kind == "insert")


def word_recall(measured: Measurement, kinds: Mapping[str, str]) -> dict[str, WordGroup]:
    """How many reference words of each kind (word → kind) are right; words without a kind are left out."""
    words: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for u in measured.utterances:
        outcome, _ = _outcome(u.reference, u.hypothesis)
        for word, hit in zip(u.reference.split(), outcome, strict=True):
            if word in kinds:
                words[kinds[word]] += 1
                right[kinds[word]] += hit
    return {kind: WordGroup(kind, words[kind], right[kind]) for kind in words}


def by_frequency(
    measured: Measurement, counts: Mapping[str, int], edges: Sequence[int] = (0, 10, 100, 1000)
) -> list[WordGroup]:
    """Recall of words by how often a text (say, the training transcripts) has them: never, 1–10, 11–100, …"""
    if list(edges) != sorted(set(edges)):
        raise BadInputError(f"frequency edges must rise, got {tuple(edges)}")
    names = ["never" if e == 0 else f"{low + 1}–{e}" for low, e in zip((-1, *edges), edges, strict=False)]
    names.append(f">{edges[-1]}")
    vocabulary = {w for u in measured.utterances for w in u.reference.split()}
    kinds = {w: names[sum(counts.get(w, 0) > e for e in edges)] for w in vocabulary}
    groups = word_recall(measured, kinds)
    return [groups.get(n, WordGroup(n, 0, 0)) for n in names]


def domain_words(target: Iterable[str], source: Iterable[str], *, ratio: float = 8.0, least: int = 3) -> frozenset[str]:
    """Words that the target text has at least `least` times, and `ratio` times as often as the source text.

    Relative frequencies with one added to each count of the source, so that a word it lacks can be compared.
    """
    in_target, in_source = (Counter(w for line in text for w in line.split()) for text in (target, source))
    total_target, total_source = in_target.total(), in_source.total()
    if not total_target or not total_source:
        raise BadInputError("domain words need a target text and a source text, and one of them is empty")
    return frozenset(
        w
        for w, n in in_target.items()
        if n >= least and n / total_target >= ratio * (in_source[w] + 1) / (total_source + 1)
    )


def oracle(
    lists: Mapping[str, NBest], references: Mapping[str, str], *, normaliser_name: NormaliserName = "none"
) -> ErrorCounts:
    """Errors if the best hypothesis of every n-best list were chosen: what rescoring could reach at most."""
    normalise = normaliser(normaliser_name)
    total = ErrorCounts()
    for i, text in references.items():
        if not lists.get(i):
            raise BadInputError(f"utterance {i!r} has no n-best list")
        texts = [normalise(h.text) for h in lists[i]]
        total += min(count_each([normalise(text)] * len(texts), texts), key=lambda c: c.errors)
    return total


def search_errors(
    decoded: Mapping[str, NBest],
    known: Mapping[str, NBest],
    references: Mapping[str, str],
    weights: FusionWeights,
    *,
    normaliser_name: NormaliserName = "none",
    tolerance: float = 1e-3,
) -> SearchErrors:
    """Splits wrong utterances into those the search lost and those the model lost.

    Args:
        decoded: What the search returned.
        known: Other hypotheses with every score: a wider beam's, or the reference itself, scored by force.
        references: Transcripts.
        weights: Of the search.
        normaliser_name: For what counts as wrong.
        tolerance: Nats by which another hypothesis must be better to count as missed.
    """
    normalise = normaliser(normaliser_name)
    right = model = 0
    missed: list[str] = []
    for i, text in references.items():
        if not decoded.get(i):
            raise BadInputError(f"utterance {i!r} was not decoded")
        chosen = decoded[i][0]
        if normalise(chosen.text) == normalise(text):
            right += 1
        elif any(h.scores.fused(weights) > chosen.scores.fused(weights) + tolerance for h in known.get(i, [])):
            missed.append(i)
        else:
            model += 1
    return SearchErrors(right, len(missed), model, tuple(missed))


def _check_pair(a: Measurement, b: Measurement) -> None:
    if [(u.id, u.reference) for u in a.utterances] != [(u.id, u.reference) for u in b.utterances]:
        raise BadInputError("both systems must be measured on the same references, normalised alike")
