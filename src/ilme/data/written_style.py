"""Domain text in the model's own written style.

An LM helps a model only if it expects the spelling that the model writes. Whisper writes case and punctuation, but no
quotation marks, colons or dashes (they are suppressed). So before an LM is trained,

    clean      turns marks that the model never writes into ones that it does, or into nothing;
    sentences  cuts running text into sentences, and `group` joins neighbours into lines as long as utterances;
    recase     gives text without case and punctuation the case and the final mark that the model would write.

`needs_recasing` tells whether the last step is needed.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ilme.data.exclude import Exclusion
from ilme.data.sentences import guess_layout, paragraphs, split_sentences
from ilme.data.textfiles import expand, sources
from ilme.errors import BadInputError
from ilme.runtime.processes import cores, ordered_map

__all__ = ["PreparedText", "clean", "domain_lines", "group", "names_of", "needs_recasing", "recase"]

# What becomes of a mark that the model does not write; a mark that is not named here becomes a space.
SUBSTITUTES = {";": ",", ":": ",", "—": ", ", "–": ", ", "--": ", ", "…": "...", "’": "'", "‘": "'", "&": " and "}
QUOTES = re.compile("[\"“”„«»‟]|``|''")
LOOSE_QUOTE = re.compile(r"(?<!\w)'(?=[A-Z])|(?<=[.!?,])'(?=\s|$)")
GOES_ON = (",", ";", ":")  # a text that ends so is no utterance
LARGE = 4_000_000  # bytes of files, compressed or not, from which several processes read them
WORDS = 9.0  # of a line, on average
RUNNING = 1.5  # sentences to a line: where lines hold more, they are paragraphs, not utterances that stand alone
BRACKETED = re.compile(r"\[[^\]]{0,80}\]")
FIRST_PERSON = re.compile(r"\bi(?=$|[\s,.!?]|'(?:m|ll|ve|d|s)\b)")
QUESTION = frozenset(
    re.findall(
        r"[\w']+",
        """what who whom whose when where why how which is are was were do does did can could will would shall
        should may have has had am isn't aren't don't doesn't didn't can't won't""",
    )
)


def clean(text: str, never: Iterable[str] = ()) -> str:
    """One line of text without marks that the model never writes.

    Args:
        text: The text.
        never: Single characters that the model's output layer cannot put out.
    """
    text = unicodedata.normalize("NFKC", text)
    text = BRACKETED.sub(" ", text)
    text = QUOTES.sub(" ", text)
    for mark, instead in SUBSTITUTES.items():
        text = text.replace(mark, instead)
    text = re.sub(r"\s-+\s", ", ", text)
    text = LOOSE_QUOTE.sub("", text)
    for mark in never:
        text = text.replace(mark, " ")
    text = re.sub(r"_+", "", text)
    text = re.sub(r"\s+(?=n't|'(?:s|m|ll|ve|d|re|t)\b|[,.!?])", "", text)  # "do n't", "word ,"
    text = re.sub(r"(?:\s*,)+(?=[.!?])|^[\s,]+", "", text)
    text = re.sub(r",(?:\s*,)+", ",", text)
    return " ".join(text.split())


def group(lines: Sequence[str], words: float = 18.0, seed: int = 0) -> Iterator[str]:
    """Joins neighbouring sentences into lines whose lengths scatter around `words`, as utterances do.

    An LM of single sentences believes that speech ends at every full stop. No line ends where a sentence goes on, as
    paragraphs do before direct speech ("and he said,"): an LM of such lines was seen to end transcripts there.
    """
    draw = random.Random(seed)
    held: list[str] = []
    size, wanted = 0, draw.expovariate(1 / words)
    for line in lines:
        held.append(line)
        size += len(line.split())
        if size >= wanted and not line.endswith(GOES_ON):
            yield " ".join(held)
            held, size, wanted = [], 0, draw.expovariate(1 / words)
    if held:
        yield " ".join(held)


def needs_recasing(lines: Sequence[str]) -> bool:
    """Whether the text carries no case: fewer than one line in ten has a capital letter."""
    filled = [line for line in lines if any(c.isalpha() for c in line)]
    if not filled:
        raise BadInputError("the text has no line with a letter in it")
    return sum(any(c.isupper() for c in line) for line in filled) < 0.1 * len(filled)


def recase(line: str, names: Iterable[str] = ()) -> str:
    """Sentence case, a capital I, capitals for known names, and a final mark: ? after a question word, else a
    full stop.

    Args:
        line: Text without case.
        names: Words in lower case that the model writes with a capital.
    """
    line = " ".join(line.split())
    if not line:
        return ""
    line = FIRST_PERSON.sub("I", line)
    known = set(names)
    if known:
        line = " ".join(w[:1].upper() + w[1:] if w.strip(",.!?") in known else w for w in line.split())
    first = line.split()[0].lower().strip(",.")
    line = line[:1].upper() + line[1:]
    if line[-1] in ".!?,":
        return line
    return line + ("?" if first in QUESTION and len(line.split()) > 2 else ".")


def names_of(lines: Iterable[str], encode: Callable[[str], list[int]]) -> set[str]:
    """Words in lower case that the model's tokenizer knows better with a capital: names, weekdays, places.

    A tokenizer has learned from text with case, so " Elizabeth" is one token there and " elizabeth" two.
    """
    words = {word.strip(",.!?") for line in lines for word in line.split()}
    return {w for w in words if w[:1].islower() and len(encode(w[:1].upper() + w[1:])) < len(encode(w))}


@dataclass(frozen=True)
class PreparedText:
    """Lines for an LM, and what was done to get them.

    Attributes:
        lines: One utterance-like line each.
        words: Words in them.
        excluded: Sentences left out because they share an n-gram of words with the evaluation text.
        recased: Whether case and final marks were put in.
        problems: Files, or parts of files, that could not be read, with the reason.
    """

    lines: list[str]
    words: int
    excluded: int
    recased: bool
    problems: tuple[str, ...]


def domain_lines(
    patterns: Sequence[str],
    *,
    never: Iterable[str] = (),
    evaluation: Iterable[str] = (),
    cased: bool = True,
    encode: Callable[[str], list[int]] | None = None,
    words: float = WORDS,
    joined: float = 0.0,
    overlap: int = 8,
    seed: int = 0,
) -> PreparedText:
    """Reads text files and returns lines in the model's written style.

    Args:
        patterns: Files or globs; archives and manifests too.
        never: Characters that the model cannot put out.
        evaluation: Texts that must not be learned, such as the dev transcripts.
        cased: Whether the model writes case and punctuation, so that text without them is given both.
        encode: The model's tokenizer, which tells the names among the words; without it no name gets its capital.
        words: Mean length that neighbouring sentences are joined to; lines that stand alone are not.
        joined: Mean length that neighbours of every text are joined to, also of lines that stand alone, for speech that
            is cut into long windows: an end is then an end of speech. 0: as `words` says.
        overlap: Words in the n-gram that counts as overlap.
        seed: Seed of the lengths.
    """
    read = _Reader(tuple(never), Exclusion.from_texts(evaluation, overlap))
    problems: list[str] = []
    runs: list[tuple[list[str], bool]] = []  # neighbouring sentences, and whether each stands alone
    excluded = 0
    files = expand(list(patterns))
    texts = (list(s.lines) for s in sources(files, lambda name, reason: problems.append(f"{name}: {reason}")))
    large = sum(file.stat().st_size for file in files) >= LARGE
    for found, left_out in ordered_map(read, texts, cores() if large else 1):
        runs += found
        excluded += left_out
    recased = False
    if joined:  # each sentence has its own case and mark before they stand in one line
        recased = cased and needs_recasing([s for run, _ in runs for s in run] or [""])
        runs = [(_recased(run, encode) if recased else run, False) for run, _ in runs]
    lines: list[str] = []
    for run, alone in runs:
        lines += run if alone else group(run, joined or words, seed + len(lines))
    if not lines:
        raise BadInputError(f"the text holds no sentence{': ' + problems[0] if problems else ''}")
    if not joined and cased and needs_recasing(lines):
        lines, recased = _recased(lines, encode), True
    return PreparedText(lines, sum(len(line.split()) for line in lines), excluded, recased, tuple(problems))


@dataclass(frozen=True)
class _Reader:
    """The lines of one text to runs of clean sentences, and how many were left out; each process has one."""

    never: tuple[str, ...]
    exclusion: Exclusion

    def __call__(self, lines: list[str]) -> tuple[list[tuple[list[str], bool]], int]:
        layout = guess_layout(lines[:4000])
        found = [split_sentences(p) for p in paragraphs(lines, layout)]
        flat = [s for sentences in found for s in sentences]
        alone = layout == "lines" and len(flat) < RUNNING * len(found)
        kept, excluded = [], 0
        for run in _runs(flat, self.exclusion):
            if run is None:
                excluded += 1
            else:
                kept.append(([c for c in (clean(s, self.never) for s in run) if any(x.isalnum() for x in c)], alone))
        return kept, excluded


def _recased(lines: Sequence[str], encode: Callable[[str], list[int]] | None) -> list[str]:
    names = names_of(lines, encode) if encode is not None else set()
    return [recase(line, names) for line in lines]


def _runs(sentences: list[str], exclusion: Exclusion) -> Iterator[list[str] | None]:
    """Stretches of sentences that are kept; None stands for each one that is left out."""
    held: list[str] = []
    for sentence, shared in zip(sentences, exclusion.overlaps(sentences), strict=True):
        if shared is None:
            held.append(sentence)
            continue
        if held:
            yield held
            held = []
        yield None
    if held:
        yield held
