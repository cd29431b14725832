"""The token inventory: which label has which id. It travels with every model and every LM."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ilme.errors import BadInputError, VocabularyMismatchError

__all__ = ["Tokenizer", "Tokens", "byte_letters", "check_same_vocabulary", "spelling"]

MARK = re.compile(r"<\|.*\|>|<id \d+>")  # units without text, as tokenizers of the hub have them


@dataclass(frozen=True)
class Tokens:
    """Names of all output units, and the ids of the special ones.

    In the paper's models id 0 is <b> for the RNN-T and <eos> for the AED and the LM, and ids 1–3999 are the same word
    pieces in all of them, so that a label has one id everywhere.

    Attributes:
        pieces: The name of each id, special units included.
        blank: Id of the transducer's blank; None for a model without one.
        sos: Id that starts a sequence; None where the model starts from a state of its own.
        eos: Id that ends a sequence; None for a model that does not score the end.
        unk: Id for text that the pieces cannot write; None where there is no such text.
    """

    pieces: tuple[str, ...]
    blank: int | None = None
    sos: int | None = None
    eos: int | None = None
    unk: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(self.pieces))
        for name in ("blank", "sos", "eos", "unk"):
            index = getattr(self, name)
            if index is not None and not 0 <= index < len(self.pieces):
                raise BadInputError(f"{name}={index} is not an id: the inventory has {len(self.pieces)} pieces")
        if self.blank is not None and self.blank in (self.eos, self.unk):
            raise BadInputError(f"blank={self.blank} must be an id of its own, not eos={self.eos} or unk={self.unk}")

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def special(self) -> frozenset[int]:
        """Ids that stand for no text."""
        return frozenset(i for i in (self.blank, self.sos, self.eos) if i is not None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tokens:
        return cls(**{**data, "pieces": tuple(data["pieces"])})


class Tokenizer(Protocol):
    """Text to ids and back, over one inventory."""

    @property
    def tokens(self) -> Tokens: ...

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without sos and eos."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text of the ids; special ids are left out."""
        ...


def byte_letters() -> dict[int, str]:
    """A printable letter for each byte, as GPT-2's vocabulary files write them (Ġ is the space)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}


def spelling(tokens: Tokens) -> list[str | None]:
    """The text of each id, with a space where its piece marks one; None for an id that stands for no text.

    A piece that is part of a character, or stands for unknown text, is written "\ufffd".
    """
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    byte_level = any(piece.startswith("Ġ") for piece in tokens.pieces)

    def text(index: int, piece: str) -> str | None:
        if index == tokens.unk or re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return "\ufffd"
        if index in tokens.special or re.fullmatch("<.+>", piece):
            return None
        if byte_level and all(letter in bytes_of for letter in piece):
            return bytes(bytes_of[letter] for letter in piece).decode(errors="replace")
        return " " if piece == "|" else piece.replace("▁", " ")

    return [text(index, piece) for index, piece in enumerate(tokens.pieces)]


def check_same_vocabulary(
    ours: Tokens, theirs: Tokens, our_name: str = "model", their_name: str = "LM", advice: str = ""
) -> None:
    """Raises VocabularyMismatchError, with advice, unless every label has the same id in both.

    A unit that is special on either side (blank here, eos there) may differ: it is never scored as a label by both. So
    may one that stands for no text in either: one model of OpenAI's has <|nospeech|> in one file, <|nocaptions|> in
    another, and no name for it in a third.
    """
    if ours is theirs or ours.pieces == theirs.pieces:
        return
    special = ours.special | theirs.special
    differing = (
        i
        for i, (a, b) in enumerate(zip(ours.pieces, theirs.pieces, strict=False))
        if a != b and i not in special and not (MARK.fullmatch(a) and MARK.fullmatch(b))
    )
    first = next(differing, None)
    if len(ours) == len(theirs) and first is None:
        return
    at = min(len(ours), len(theirs)) if first is None else first
    a, b = (repr(t.pieces[at]) if at < len(t) else "nothing" for t in (ours, theirs))
    raise VocabularyMismatchError(
        f"the {our_name} has {len(ours)} tokens and the {their_name} {len(theirs)}; they first differ at id {at}: "
        f"{a} against {b}. "
        + (advice or f"Train the {their_name} on text tokenised with the {our_name}'s own tokenizer.")
    )
