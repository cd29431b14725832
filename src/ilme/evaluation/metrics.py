"""Word and character errors, counted by jiwer, with the text normaliser named in every result.

WER = (S + D + I) / N     substitutions, deletions and insertions over the N words of the references
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, Literal, TypeVar, get_args

import jiwer

from ilme.errors import BadInputError, MissingExtraError

__all__ = [
    "Edit",
    "ErrorCounts",
    "Measurement",
    "NormaliserName",
    "Unit",
    "UtteranceErrors",
    "align",
    "measure",
    "normaliser",
]

NormaliserName = Literal["none", "spoken", "basic", "whisper"]
Unit = Literal["word", "character"]
Value = TypeVar("Value")


@dataclass(frozen=True)
class ErrorCounts:
    """How one or many hypotheses differ from their references."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def words(self) -> int:
        """Length of the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference word, in per cent."""
        if self.words == 0:
            raise BadInputError("the references hold no words, so there is no error rate; are the transcripts empty?")
        return 100.0 * self.errors / self.words

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


@dataclass(frozen=True)
class Edit:
    """One step of an alignment: `equal`, `substitute`, `delete` or `insert`.

    Attributes:
        kind: What happened.
        reference: The reference word; empty for an insertion.
        hypothesis: The hypothesis word; empty for a deletion.
    """

    kind: Literal["equal", "substitute", "delete", "insert"]
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class UtteranceErrors:
    """One utterance, normalised as the measurement says.

    Attributes:
        id: Its name.
        reference: The reference, normalised.
        hypothesis: The hypothesis, normalised.
        counts: Their differences.
        speaker: Who spoke; the id itself where it is not known.
    """

    id: str
    reference: str
    hypothesis: str
    counts: ErrorCounts
    speaker: str


@dataclass(frozen=True)
class Measurement:
    """Errors of one system on one set.

    Attributes:
        utterances: In the order of the references.
        normaliser: What was done to both sides before counting.
        unit: Words (WER) or characters (CER).
    """

    utterances: tuple[UtteranceErrors, ...]
    normaliser: NormaliserName
    unit: Unit = "word"

    @property
    def total(self) -> ErrorCounts:
        return sum((u.counts for u in self.utterances), ErrorCounts())

    @property
    def rate(self) -> float:
        """WER or CER in per cent."""
        return self.total.rate

    def by_speaker(self) -> dict[str, ErrorCounts]:
        return self._grouped(lambda u: u.speaker)

    def by_length(self, edges: Sequence[int] = (5, 10, 20, 40)) -> dict[str, ErrorCounts]:
        """Errors by reference length: up to 5 words, 6–10, … and above the last edge."""
        if list(edges) != sorted(set(edges)) or not edges:
            raise BadInputError(f"length edges must rise, got {tuple(edges)}")
        names = [f"{low + 1}–{high}" for low, high in zip((-1, *edges), edges, strict=False)]
        names[0] = f"≤{edges[0]}"
        names.append(f">{edges[-1]}")

        def name(u: UtteranceErrors) -> str:
            return names[sum(u.counts.words > edge for edge in edges)]

        groups = self._grouped(name)
        return {n: groups[n] for n in names if n in groups}

    def _grouped(self, key: Callable[[UtteranceErrors], str]) -> dict[str, ErrorCounts]:
        groups: dict[str, ErrorCounts] = {}
        for u in self.utterances:
            groups[key(u)] = groups.get(key(u), ErrorCounts()) + u.counts
        return groups


def measure(
    references: Mapping[str, str],
    hypotheses: Mapping[str, str],
    *,
    speakers: Mapping[str, str] | None = None,
    normaliser_name: NormaliserName = "none",
    unit: Unit = "word",
) -> Measurement:
    """Counts the errors of `hypotheses` (id → text) against `references` (id → text).

    Both hold the same ids. An utterance without a speaker is a speaker of its own.
    """
    if not references:
        raise BadInputError("there are no references to measure against")
    missing = [i for i in references if i not in hypotheses]
    if missing:
        raise BadInputError(
            f"{len(missing)} of {len(references)} utterances have no hypothesis, first {missing[0]!r}; "
            "finish the decode (it continues where it stopped) or leave them out of the references"
        )
    unknown = [i for i in hypotheses if i not in references]
    if unknown:
        raise BadInputError(f"{len(unknown)} hypotheses have no reference, the first is {unknown[0]!r}")
    normalise = normaliser(normaliser_name)
    ids = list(references)
    left = [normalise(references[i]) for i in ids]
    right = [normalise(hypotheses[i]) for i in ids]
    counts = count_each(left, right, unit)
    who = speakers or {}
    return Measurement(
        tuple(
            UtteranceErrors(i, r, h, c, who.get(i) or i) for i, r, h, c in zip(ids, left, right, counts, strict=True)
        ),
        normaliser_name,
        unit,
    )


def count_each(references: Sequence[str], hypotheses: Sequence[str], unit: Unit = "word") -> list[ErrorCounts]:
    """The error counts of each pair of texts."""
    if not references:
        return []
    output = _process(list(references), list(hypotheses), unit)
    return [_count(chunks) for chunks in output.alignments]


def align(reference: str, hypothesis: str) -> list[Edit]:
    """The words of both texts side by side, one edit each."""
    output = _process([reference], [hypothesis], "word")
    left, right = reference.split(), hypothesis.split()
    edits: list[Edit] = []
    for chunk in output.alignments[0]:
        r = left[chunk.ref_start_idx : chunk.ref_end_idx]
        h = right[chunk.hyp_start_idx : chunk.hyp_end_idx]
        edits += [Edit(chunk.type, x, y) for x, y in zip_longest(r, h, fillvalue="")]
    return edits


def _process(references: list[str], hypotheses: list[str], unit: Unit) -> Any:
    if unit not in get_args(Unit):
        raise BadInputError(f"the unit is one of {', '.join(get_args(Unit))}, not {unit!r}")
    return (jiwer.process_words if unit == "word" else jiwer.process_characters)(references, hypotheses)


def _count(chunks: Iterable[Any]) -> ErrorCounts:
    spans = {"equal": 0, "substitute": 0, "delete": 0, "insert": 0}
    for chunk in chunks:
        spans[chunk.type] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return ErrorCounts(spans["equal"], spans["substitute"], spans["delete"], spans["insert"])


def _basic(text: str) -> str:
    """Lower case, and nothing but letters, marks and digits, of any language."""
    plain = unicodedata.normalize("NFKC", text).lower()
    return " ".join("".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in plain).split())


@cache
def normaliser(name: NormaliserName) -> Callable[[str], str]:
    """The named text normaliser.

    `none` only collapses white space. `spoken` writes what a voice says: lower case, numbers in words, no
    punctuation but the apostrophe (`ilme.data.normalise`); its numbers are English. `basic` is for any language: lower
    case, and nothing but letters, marks and digits. `whisper` is OpenAI's English normaliser, as in published
    Whisper WERs.
    """
    if name == "none":
        return lambda text: " ".join(text.split())
    if name == "spoken":
        from ilme.data.normalise import spoken

        return spoken
    if name == "basic":
        return _basic
    if name == "whisper":
        try:
            from whisper_normalizer.english import EnglishTextNormalizer
        except ImportError as error:
            raise MissingExtraError("whisper-normalizer", "whisper-metrics") from error
        english = EnglishTextNormalizer()
        return lambda text: " ".join(english(text).split())
    raise BadInputError(f"no normaliser {name!r}; choose one of {', '.join(get_args(NormaliserName))}")
