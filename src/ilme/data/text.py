"""Preparing text for language models: read, split, normalise, exclude, deduplicate, hold out.

One process reads and writes; the others normalise. Blocks of text come back in the order in which they left, so the
result does not depend on the number of processes. Memory holds a few blocks and 8 bytes for each different sentence.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ilme.data.dedupe import Seen, hash64
from ilme.data.exclude import Exclusion
from ilme.data.normalise import Profile, normalise
from ilme.data.sentences import Layout, guess_layout, paragraphs, split_sentences
from ilme.data.textfiles import TextSource, expand, sources
from ilme.errors import BadInputError
from ilme.runtime.files import atomic_text, write_json
from ilme.runtime.processes import cores, ordered_map

__all__ = ["PrepareOptions", "PrepareReport", "prepare"]

_BLOCK = 1 << 18  # characters that one worker gets at a time
_SMALL = 1 << 22  # bytes of input below which starting processes is not worth it
_SAMPLE = 2000  # lines that show a text's layout


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare text.

    Attributes:
        profile: `spoken`: lower case, numbers in words, no punctuation; `written`: case and punctuation kept.
        layout: How lines relate to sentences; `auto` looks at the start of each text.
        min_words: Shorter sentences are left out.
        max_words: Longer sentences are left out.
        deduplicate: Keep only the first of equal sentences.
        hold_out: Share of the sentences that goes to heldout.txt instead of train.txt, chosen by their hash.
        seed: Another seed holds out other sentences.
        exclude_ngram: How many words in a row a sentence may share with an evaluation set, plus one.
        workers: Processes; None for one per core, and none besides this one when the input is small.
    """

    profile: Profile = "spoken"
    layout: Literal["auto", "lines", "wrapped", "indented"] = "auto"
    min_words: int = 1
    max_words: int = 200
    deduplicate: bool = True
    hold_out: float = 0.0
    seed: int = 0
    exclude_ngram: int = 8
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.profile not in ("spoken", "written"):
            raise BadInputError(f"profile must be spoken or written, got {self.profile!r}")
        if self.layout not in ("auto", "lines", "wrapped", "indented"):
            raise BadInputError(f"layout must be auto, lines, wrapped or indented, got {self.layout!r}")
        if not 0 <= self.hold_out < 1:
            raise BadInputError(f"hold_out must be at least 0 and below 1, got {self.hold_out}")
        if not 1 <= self.min_words <= self.max_words:
            raise BadInputError(f"need 1 ≤ min_words ≤ max_words, got {self.min_words} and {self.max_words}")
        if self.exclude_ngram < 1 or (self.workers is not None and self.workers < 1):
            raise BadInputError("exclude_ngram and workers must be at least 1")


@dataclass
class PrepareReport:
    """What became of every sentence: found = train + heldout + duplicates + excluded + the rest of `dropped`.

    Attributes:
        texts: Texts read.
        found: Sentences found.
        train: Sentences written to train.txt.
        train_words: Their words.
        heldout: Sentences written to heldout.txt.
        heldout_words: Their words.
        dropped: Sentences left out, by reason.
        problems: Files and lines that could not be read, each with its reason.
    """

    texts: int = 0
    found: int = 0
    train: int = 0
    train_words: int = 0
    heldout: int = 0
    heldout_words: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"dropped": dict(self.dropped)}


@dataclass(frozen=True)
class _Block:
    """What a worker makes of a block of paragraphs."""

    sentences: list[str]
    hashes: NDArray[np.uint64]
    dropped: Counter[str]
    excluded: list[tuple[str, str]]
    found: int


@dataclass(frozen=True)
class _Worker:
    """Paragraphs to sentences; each process has one."""

    options: PrepareOptions
    exclusion: Exclusion

    def __call__(self, block: list[str]) -> _Block:
        options = self.options
        kept: list[str] = []
        excluded: list[tuple[str, str]] = []
        dropped: Counter[str] = Counter()
        found = 0
        for paragraph in block:
            raw = split_sentences(paragraph)
            found += len(raw)
            texts = [normalise(sentence, options.profile) for sentence in raw]
            shared = self.exclusion.overlaps(texts, are_spoken=options.profile == "spoken")
            for source, text, ngram in zip(raw, texts, shared, strict=True):
                if "\ufffd" in source:
                    dropped["undecodable"] += 1
                elif ngram is not None:
                    dropped["excluded"] += 1
                    excluded.append((text, ngram))
                elif reason := self._reason_to_drop(text):
                    dropped[reason] += 1
                else:
                    kept.append(text)
        return _Block(kept, np.array([hash64(s) for s in kept], dtype=np.uint64), dropped, excluded, found)

    def _reason_to_drop(self, text: str) -> str | None:
        words = text.count(" ") + 1 if text else 0
        if not any(map(str.isalpha, text)):
            return "no letters"
        if words < self.options.min_words:
            return "too short"
        if words > self.options.max_words or len(text) > 40 * self.options.max_words:
            return "too long"
        return None


def prepare(
    inputs: Sequence[str],
    out: str | os.PathLike[str],
    exclude: Sequence[str] = (),
    options: PrepareOptions | None = None,
) -> PrepareReport:
    """Writes train.txt, heldout.txt, excluded.jsonl and report.json into the folder `out`.

    Args:
        inputs: Files and globs of text (plain, .gz, .xz, .bz2, tar, .jsonl with a field `text`).
        out: The folder to write; its files are replaced when all is done, and left alone where no sentence is found.
        exclude: Files and globs of evaluation text, read the same way.
        options: How.
    """
    options = options or PrepareOptions()
    paths = expand(inputs)
    report = PrepareReport()

    def problem(name: str, reason: str) -> None:
        report.problems.append({"name": name, "reason": reason})

    exclusion = read_exclusion(exclude, options.exclude_ngram, problem)
    folder = Path(out)
    with (
        atomic_text(folder / "train.txt") as train,
        atomic_text(folder / "heldout.txt") as heldout,
        atomic_text(folder / "excluded.jsonl") as excluded,
    ):
        writer = _Writer(train, heldout, excluded, options, report)
        small = options.workers is None and sum(p.stat().st_size for p in paths) < _SMALL
        workers = 1 if small else options.workers or cores()
        for result in ordered_map(_Worker(options, exclusion), _blocks(paths, options, report, problem), workers):
            writer.write(result)
        if not report.train + report.heldout:
            raise BadInputError(_nothing_left(report))  # nothing is written
    write_json(folder / "report.json", report.to_json(), indent=2)
    return report


def _nothing_left(report: PrepareReport) -> str:
    dropped = [f"{count} {reason}" for reason, count in sorted(report.dropped.items())]
    problems = [f"{problem['name']} {problem['reason']}" for problem in report.problems[:3]]
    why = ", ".join(dropped + problems) or "there is no text in them"
    return (
        f"{report.found} sentences were found in {report.texts} texts, and none can be used ({why}); name files that "
        "hold text"
    )


def read_exclusion(patterns: Sequence[str], length: int, problem: Callable[[str, str], None]) -> Exclusion:
    """The n-grams of evaluation files."""
    return Exclusion.from_texts(evaluation_texts(patterns, problem), length)


def evaluation_texts(patterns: Sequence[str], problem: Callable[[str, str], None]) -> list[str]:
    """The texts of evaluation files; one that is wrapped is joined, so that n-grams run over line ends."""
    paths = expand(patterns)
    found: list[str] = []
    for source in sources(paths, problem):
        layout, lines = _layout(source)
        found += paragraphs(lines, layout)
    if paths and not found:
        raise BadInputError(f"{', '.join(patterns)}: there is no text to exclude in it; name the evaluation text")
    return found


def _layout(source: TextSource, wanted: Layout | Literal["auto"] = "auto") -> tuple[Layout, Iterator[str]]:
    """The layout of a text, and its lines again."""
    if wanted != "auto":
        return wanted, source.lines
    sample = list(itertools.islice(source.lines, _SAMPLE))
    return guess_layout(sample), itertools.chain(sample, source.lines)


def _blocks(
    paths: Sequence[Path], options: PrepareOptions, report: PrepareReport, problem: Callable[[str, str], None]
) -> Iterator[list[str]]:
    for source in sources(paths, problem):
        report.texts += 1
        layout, lines = _layout(source, options.layout)
        block: list[str] = []
        size = 0
        for paragraph in paragraphs(lines, layout):
            block.append(paragraph)
            size += len(paragraph)
            if size >= _BLOCK:
                yield block
                block, size = [], 0
        if block:
            yield block


class _Writer:
    """Deduplicates, holds out, writes and counts."""

    def __init__(
        self, train: IO[str], heldout: IO[str], excluded: IO[str], options: PrepareOptions, report: PrepareReport
    ) -> None:
        self._train, self._heldout, self._excluded = train, heldout, excluded
        self._options, self._report = options, report
        self._seen = Seen()
        self._salt = np.uint64(hash64(f"hold out {options.seed}"))

    def write(self, block: _Block) -> None:
        report = self._report
        report.found += block.found
        report.dropped.update(block.dropped)
        for sentence, ngram in block.excluded:
            self._excluded.write(json.dumps({"text": sentence, "shared": ngram}, ensure_ascii=False) + "\n")
        new = np.ones(len(block.hashes), dtype=bool)
        if self._options.deduplicate:
            new = self._seen.add(block.hashes)
            if not new.all():
                report.dropped["duplicates"] += int((~new).sum())
        held = self._held_out(block.hashes) & new
        for mask, file in ((new & ~held, self._train), (held, self._heldout)):
            chosen = list(itertools.compress(block.sentences, mask.tolist()))
            file.writelines(f"{sentence}\n" for sentence in chosen)
            words = sum(sentence.count(" ") + 1 for sentence in chosen)
            if file is self._train:
                report.train += len(chosen)
                report.train_words += words
            else:
                report.heldout += len(chosen)
                report.heldout_words += words

    def _held_out(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        mixed = (hashes ^ self._salt) * np.uint64(0x9E3779B97F4A7C15)
        share: NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
        return share < self._options.hold_out
