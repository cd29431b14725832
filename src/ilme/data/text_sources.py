"""From the files of a package to works: titled texts in paragraphs, without code, tables and page furniture."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise

from ilme.data.sentences import paragraphs
from ilme.data.templates import Grammar
from ilme.errors import BadInputError

__all__ = [
    "Extractor",
    "Work",
    "commands",
    "dictionary",
    "documents",
    "mobydick",
    "novels",
    "plays",
    "scripture",
    "speeches",
]

Files = Iterator[tuple[str, bytes]]


@dataclass(frozen=True)
class Work:
    """A book, a speech, a play: what is held out as a whole."""

    name: str
    paragraphs: tuple[str, ...]


Extractor = Callable[[Files], Iterator[Work]]


def _wrapped(text: str) -> tuple[str, ...]:
    return tuple(paragraphs(text.splitlines(), "wrapped"))


def speeches(files: Files) -> Iterator[Work]:
    """State of the Union addresses, one file each; the year starts the name."""
    for name, data in files:
        if "/speeches/" in name and name.endswith(".txt"):
            yield Work(name.rpartition("/")[2].removesuffix(".txt"), tuple(data.decode("utf-8").splitlines()))


def mobydick(files: Files) -> Iterator[Work]:
    """One novel, one file for each chapter."""
    chapters = [
        (int(match[1]), data.decode("utf-8"))
        for name, data in files
        if (match := re.search(r"/chapter_(\d+)\.txt$", name))
    ]
    yield Work("Moby Dick", tuple(p for _, text in sorted(chapters) for p in _wrapped(text)))


def novels(files: Files) -> Iterator[Work]:
    """Character vectors of an R package: its lazy-load database holds one compressed serialisation after another."""
    for name, data in files:
        if not name.endswith("/data/Rdata.rdb"):
            continue
        while data:
            decompressor = zlib.decompressobj()
            try:
                lines = _r_strings(decompressor.decompress(data[4:]))
            except (zlib.error, struct.error, UnicodeDecodeError) as error:
                raise BadInputError(f"{name} is not a database of R texts as known here: {error}") from error
            data = decompressor.unused_data
            title = next(line for line in lines if line.strip()).title()
            yield Work(title, tuple(p for p in paragraphs(lines[1:], "wrapped") if not _HEADING.match(p.strip())))


_HEADING = re.compile(
    r"(?:CHAPTER|VOLUME|BOOK|Chapter|Volume)\b.{0,20}$|\(?\d{4}\)?$|(?:by|By) Jane Austen|FINIS|Finis"
)
_STRINGS, _STRING = 16, 9  # R's type codes


def _r_strings(data: bytes) -> list[str]:
    """A character vector out of R's binary serialisation (XDR, version 2 or 3)."""
    if data[:2] != b"X\n":
        raise struct.error("no XDR header")
    version, at = struct.unpack(">i", data[2:6])[0], 14
    if version == 3:  # the name of the encoding follows
        at += 4 + int(struct.unpack(">i", data[14:18])[0])
    flags, count = struct.unpack(">ii", data[at : at + 8])
    if flags & 0xFF != _STRINGS:
        raise struct.error(f"object of type {flags & 0xFF}, not a character vector")
    at += 8
    lines = []
    for _ in range(count):
        flags, size = struct.unpack(">ii", data[at : at + 8])
        if flags & 0xFF != _STRING:
            raise struct.error(f"element of type {flags & 0xFF}, not a string")
        at += 8
        lines.append(data[at : at + max(size, 0)].decode("utf-8"))
        at += max(size, 0)
    return lines


_SPEAKER = re.compile(r"[A-Z][\w'., -]{0,30}\.?$")
_DIRECTION = re.compile(r"\[[^\]]*\]?")


def plays(files: Files) -> Iterator[Work]:
    """Shakespeare's plays in modern spelling: a speech is a paragraph under its speaker's name."""
    for name, data in files:
        if not name.endswith("_gut.txt"):
            continue
        spoken = []
        for block in re.split(r"\n\s*\n", data.decode("latin-1").replace("\r", "")):
            speaker, _, speech = block.strip("\n").partition("\n")
            if speech and _SPEAKER.match(speaker.strip()) and not re.match(r"(?i)(act|scene|\s*\[)", speaker):
                spoken.append(" ".join(_DIRECTION.sub(" ", speech).split()))
        if len(spoken) > 100:  # poems and prose have no speakers
            yield Work(name.rpartition("/")[2].removesuffix("_gut.txt"), tuple(spoken))


_VERSE = re.compile(r"^\s+(\d{7,8}): (\d+),$", re.MULTILINE)


def scripture(files: Files) -> Iterator[Work]:
    """The King James Bible: one text, with the place at which each verse starts; a verse's number tells its book."""
    for name, data in files:
        if not name.endswith("plain_text_readers_bible.py"):
            continue
        _, text, rest = data.decode("utf-8").split('"""', 2)
        starts: dict[int, int] = {}
        for match in _VERSE.finditer(rest[: rest.index("}")]):
            starts.setdefault(int(match[1]) // 1_000_000, int(match[2]))
        bounds = [*sorted(starts.items(), key=lambda item: item[1]), (0, len(text))]
        for (book, start), (_, end) in pairwise(bounds):
            lines = text[start:end].replace("[", "").replace("]", "").splitlines()
            yield Work(f"book {book:02}", tuple(line for line in lines if line.strip()))


_PER_TEMPLATE = 40


def commands(files: Files) -> Iterator[Work]:
    """Commands to a home assistant: sentences drawn from each template of its English grammar."""
    for name, data in files:
        if name.endswith("/data/en.json"):
            grammar = Grammar.from_intents(json.loads(data))
            for number, template in enumerate(grammar.templates):
                sentences = {grammar.sample(template, seed=number * 1000 + i) for i in range(_PER_TEMPLATE)}
                yield Work(f"template {number:04}", tuple(sorted(s for s in sentences if s)))


class _Paragraphs(HTMLParser):
    """The text of <p> and <li> elements, without code and tables."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._text: list[str] | None = None
        self._muted = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("p", "li"):
            self._close()
            self._text = []
        elif tag in ("pre", "table", "script", "style", "svg", "blockquote", "h1", "h2", "h3", "h4", "ul", "ol", "dl"):
            self._close()
            self._muted += tag in ("pre", "table", "script", "style", "svg", "blockquote")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "li", "ul", "ol", "div", "body"):
            self._close()
        elif tag in ("pre", "table", "script", "style", "svg", "blockquote"):
            self._muted = max(0, self._muted - 1)

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._muted:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._close()

    def _close(self) -> None:
        text = " ".join("".join(self._text or []).split())
        self._text = None
        # Prose has sentences; lists of names, grammars and code fragments do not read aloud.
        if len(text.split()) >= 5 and not re.search(r"[{}<>|\\_]|--|\(\)|[a-z]\.[a-z]", text):
            self.found.append(text)


def documents(files: Files) -> Iterator[Work]:
    """SQLite's manual: one work for each page."""
    for name, data in files:
        if re.search(r"/sqlite3/(?!requirements|doc_|th3|matrix)[a-z0-9_-]+\.html$", name):
            parser = _Paragraphs()
            parser.feed(data.decode("utf-8", "replace"))
            parser.close()
            if parser.found:
                yield Work(name.rpartition("/")[2].removesuffix(".html"), tuple(parser.found))


_QUOTED = re.compile(r'"([^"]*)"?')
_MARKER = re.compile(r"\(\w+\)$")  # where an adjective may stand


def dictionary(files: Files) -> Iterator[Work]:
    """WordNet: what a word means, after the word, and sentences with it. One work for each of its files' topics."""
    topics: dict[str, list[str]] = {}
    for name, data in files:
        if not re.search(r"/data\.(noun|verb|adj|adv)$", name):
            continue
        for line in data.decode("utf-8").splitlines():
            fields, bar, gloss = line.partition(" | ")
            if bar and not line.startswith(" "):  # the licence is indented
                topics.setdefault(fields.split()[1], []).extend(_entry(fields, gloss))
    for topic, found in sorted(topics.items()):
        yield Work(f"topic {topic}", tuple(found))


def _entry(fields: str, gloss: str) -> Iterator[str]:
    """A line's words (their number, in hexadecimal, is its fourth field) with their meaning, and its examples."""
    _, _, _, count, *rest = fields.split()
    words = [_MARKER.sub("", word).replace("_", " ") for word in rest[: 2 * int(count, 16) : 2]]
    said = [word for word in words if word.islower()]  # names and Latin are left to those who know them
    meaning = " ".join(_QUOTED.sub(" ", gloss).replace(";", " ").split())
    if meaning:
        yield f"{' or '.join(said)} {meaning}".strip()
    yield from (example.strip() for example in _QUOTED.findall(gloss) if example.strip())
