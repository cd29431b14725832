"""The LM of a domain: an n-gram over the model's own tokens, from text in the style that the model writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme import bundle
from ilme.data.normalise import spoken
from ilme.data.written_style import PreparedText, domain_lines, recase
from ilme.errors import BadInputError
from ilme.lm.case_folding import Folds
from ilme.lm.hf import load_causal
from ilme.lm.mixing import is_mixture, read_mixture, write_mixture
from ilme.lm.ngram import NGramScorer, build_automaton, lm_tokens
from ilme.lm.ngram_train import NGramOptions, TrainedNGram, train_ngram
from ilme.recogniser.loading import is_causal, is_checkpoint
from ilme.runtime.files import weights_file
from ilme.tokens import Tokens

__all__ = [
    "MIXTURE",
    "DomainText",
    "LMOptions",
    "NGramCounter",
    "flat",
    "keep_lm",
    "ngram_lm",
    "read_domain_text",
    "text_writer",
    "train_domain_lm",
    "train_ngram_lm",
    "unwritable",
]

SPELLED = 200  # an inventory of fewer units spells words out
FEWEST_WORDS = 20  # a few sentences; of less an LM learns nothing but to repeat them
MIXTURE = "lm.json"
MOST_TOKENS = 0.55  # tokens to a letter; text that needs more is not in a script that the model writes
MOST_UNKNOWN = 0.05  # of the tokens
Say = Callable[[str], None]


@dataclass(frozen=True)
class LMOptions:
    """How the LM is made.

    Attributes:
        style: `restore`, `fold`, `keep` or `spoken`, see `ilme.workflows.adapt.AdaptOptions`.
        order: Order of the n-gram LM.
        prune: Counts up to which n-grams of each order are left out, unigrams first; the last stands for the rest.
        overlap: A sentence that shares this many words in a row with dev is left out; 0 leaves none out.
        seed: Seed of the lengths to which sentences are joined.
        joined: Words, on average, to which neighbours of every text are joined, see `ilme.data.written_style`; 0 joins
            running text alone, to lines as long as short utterances.
    """

    style: str = "restore"
    order: int = 4
    prune: tuple[int, ...] = (0, 0, 1)
    overlap: int = 8
    seed: int = 0
    joined: float = 0.0


@dataclass(frozen=True)
class DomainText:
    """The text of a domain as the LM reads it.

    Attributes:
        lines: Each line, in the model's style.
        ids: The same in the model's tokens, folded where the style says so.
        about: What went into it, for the card.
    """

    lines: list[str]
    ids: list[list[int]]
    about: dict[str, Any]

    @property
    def tokens(self) -> int:
        """How many there are, ends of lines not counted."""
        return sum(map(len, self.ids))


def read_domain_text(
    model: Any, text: Sequence[str], evaluation: Sequence[str], options: LMOptions, say: Say
) -> DomainText:
    """Reads the text of a domain, in the style that the model writes.

    Args:
        model: The model, for its tokens and tokenizer.
        text: Text files or globs.
        evaluation: Texts that must not be learned: the dev transcripts.
        options: How.
        say: Called with one line for each thing done.
    """
    lines = _lines(model, text, evaluation, options)
    kept, ids = lines.lines, [model.tokenizer.encode(line) for line in lines.lines]
    if options.style == "fold":
        ids = list(map(Folds(model.tokens), ids))
        kept, ids = [line for line, y in zip(kept, ids, strict=True) if y], [y for y in ids if y]
    count = sum(map(len, ids))
    _check_script(model.tokens, lines, ids, count)
    about = {
        "lines": len(lines.lines),
        "words": lines.words,
        "tokens": count,
        "style": options.style,
        "recased": lines.recased,
        "left out for overlap with dev": lines.excluded,
        "unreadable": list(lines.problems),
    }
    styled = ", given case and punctuation" if lines.recased else ""
    overlap = f"{lines.excluded} sentences left out for overlap with dev"
    for problem in lines.problems[:5]:
        say(f"text: {problem}")
    say(f"text: {lines.words:,} words in {len(lines.lines):,} lines{styled}; {overlap}")
    return DomainText(kept, ids, about)


def train_ngram_lm(model: Any, ids: Sequence[Sequence[int]], options: LMOptions) -> tuple[NGramScorer, dict[str, Any]]:
    """An n-gram of lines in the model's tokens, and what it is made of."""
    return ngram_lm(model, NGramCounter(lm_tokens(model.tokens), options)(flat(ids, model.tokens)), options)


def ngram_lm(model: Any, trained: TrainedNGram, options: LMOptions) -> tuple[NGramScorer, dict[str, Any]]:
    """A trained n-gram as the LM of a model, and what it is made of."""
    arpa, tokens = trained.arpa, lm_tokens(model.tokens)
    scorer = NGramScorer(build_automaton(arpa), tokens, arpa.missing, arpa.unknown, model.device)
    return scorer, {"order": options.order, "n-grams": list(trained.kept)}


def flat(ids: Sequence[Sequence[int]], tokens: Tokens) -> NDArray[np.int64]:
    """Lines one after another (count,), each followed by the end."""
    count, eos = sum(map(len, ids)) + len(ids), lm_tokens(tokens).eos
    return np.fromiter((i for y in ids for i in (*y, eos)), dtype=np.int64, count=count)


@dataclass(frozen=True)
class NGramCounter:
    """Trains an n-gram on lines as `flat` gives them, here or in another process."""

    tokens: Tokens
    options: LMOptions

    def __call__(self, lines: NDArray[np.int64]) -> TrainedNGram:
        order = self.options.order
        return train_ngram(lines, self.tokens, NGramOptions(order, self.options.prune[:order]))


def train_domain_lm(
    model: Any, text: Sequence[str], evaluation: Sequence[str], path: Path, options: LMOptions, say: Say
) -> tuple[NGramScorer, dict[str, Any]]:
    """Trains an n-gram on the text of a domain and writes it to `path`; the other arguments are `read_domain_text`'s.

    Returns:
        The LM, and what went into it.
    """
    read = read_domain_text(model, text, evaluation, options, say)
    scorer, about = train_ngram_lm(model, read.ids, options)
    scorer.save(path)
    say(f"LM: {options.order}-gram over the model's tokens, {sum(about['n-grams']):,} n-grams")
    return scorer, read.about | about


def keep_lm(name: str, folder: Path) -> str:
    """Copies an LM that was given by name into a domain folder, so that the folder is whole; its name there.

    A bundled LM is everywhere, and keeps its name.
    """
    if name.startswith(bundle.PREFIX):
        return name
    source = Path(name)
    if is_mixture(source):
        mixture = read_mixture(source)
        kept = [folder / keep_lm_file(part, folder, f"lm-{number}") for number, part in enumerate(mixture.files)]
        write_mixture(folder / MIXTURE, replace(mixture, files=tuple(kept)))
        return MIXTURE
    return keep_lm_file(source, folder, "lm")


def keep_lm_file(source: Path, folder: Path, stem: str) -> str:
    """Copies one LM into the folder as STEM with its own suffix, and what lies beside it; its name there."""
    file = weights_file(source)
    if not source.exists() and is_causal(source):  # by its name on the hub
        for part in load_causal(str(source)):
            part.save_pretrained(folder / stem)
        return stem
    if source.is_dir() and is_causal(source) and not is_checkpoint(source):
        shutil.copytree(source, folder / stem)
        return stem
    name = stem + "".join(file.suffixes[-2:] if file.suffix == ".gz" else file.suffixes[-1:])
    shutil.copyfile(file, folder / name)
    beside = Path(f"{file}.tokens.json")
    if beside.is_file():
        shutil.copyfile(beside, folder / f"{name}.tokens.json")
    return name


def text_writer(model: Any, style: str) -> Callable[[str], str]:
    """A function that writes a transcript as the model would: with case and a final mark, or as words are said."""
    if style == "spoken":
        upper = _writes_capitals(model.tokens)
        return lambda text: spoken(text).upper() if upper else spoken(text)
    if style in ("restore", "fold"):
        return lambda text: recase(text) if text == text.lower() else text
    return lambda text: text


def _lines(model: Any, text: Sequence[str], evaluation: Sequence[str], options: LMOptions) -> PreparedText:
    lines = domain_lines(
        text,
        never=unwritable(model),
        evaluation=evaluation if options.overlap else (),
        cased=options.style in ("restore", "fold"),
        encode=model.tokenizer.encode,
        overlap=options.overlap or LMOptions.overlap,
        seed=options.seed,
        joined=options.joined,
    )
    if lines.words < FEWEST_WORDS:
        raise BadInputError(
            f"the text holds {lines.words} words in {len(lines.lines)} lines, and at least {FEWEST_WORDS} words are "
            "needed, better some thousands; name more text of the domain with --text"
        )
    if options.style != "spoken":
        return lines
    said = map(text_writer(model, options.style), lines.lines)
    return replace(lines, lines=[line for line in said if line])


def _writes_capitals(tokens: Tokens) -> bool:
    """Whether the model writes capital letters alone, as LibriSpeech's transcripts have them."""
    pieces = [p for i, p in enumerate(tokens.pieces) if i not in tokens.special and not p.startswith("<")]
    return any(p.isupper() for p in pieces) and not any(c.islower() for p in pieces for c in p)


def unwritable(model: Any) -> list[str]:
    """Single characters that the model's output layer never puts out, alone or after a space."""
    allowed = getattr(model, "allowed", None)
    if allowed is None:
        return []
    blocked = {i for i, value in enumerate(allowed.tolist()) if value < 0}
    pieces = {p.removeprefix("Ġ").removeprefix("▁"): i for i, p in enumerate(model.tokens.pieces) if i in blocked}
    return [p for p in pieces if len(p) == 1 and not p.isalnum() and p.isascii() and p not in "-'"]


def _check_script(tokens: Tokens, text: PreparedText, ids: Sequence[Sequence[int]], count: int) -> None:
    """Text that needs a token for nearly every letter, or has many unknown ones, is not what the model writes."""
    letters = sum(len(line) for line in text.lines)
    if len(tokens) >= SPELLED and count > MOST_TOKENS * letters:
        raise BadInputError(
            f"the text needs {count / max(text.words, 1):.1f} tokens per word (English needs about 1.3): it seems to "
            "be in a language or script that this model does not write"
        )
    unknown = sum(i == tokens.unk for y in ids for i in y) if tokens.unk is not None else 0
    if unknown > MOST_UNKNOWN * max(count, 1):
        raise BadInputError(
            f"{unknown / count:.0%} of the text's tokens are unknown to the model: it seems to be in a language or "
            "script that this model does not write"
        )
