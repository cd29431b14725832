"""Word pieces by sentencepiece BPE, laid out as the paper's models need them.

Id 0 is the special slot: <b> for a transducer, <eos> (and start) for an attention decoder or an LM. Ids 1 …
V−1 are the same labels in all of them, <unk> first, so one tokenizer serves every model of a family.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.files import write_atomically
from ilme.tokens import Tokens

__all__ = ["Role", "SentencePieceTokenizer"]

Role = Literal["transducer", "attention", "lm"]

SPECIAL, UNKNOWN = 0, 1
_LONGEST_LINE = 8192  # characters; sentencepiece silently leaves out overlong lines, so they are cut


class SentencePieceTokenizer:
    """Text to ids and back.

    A character that no training text held becomes <unk> (id 1), and decodes to " ⁇ ": text is never dropped
    in silence, and `unknown(text)` lists such characters. Text is NFKC-normalised and its white space
    collapsed, so `decode(encode(text))` equals text that is so already and has only known characters.
    """

    def __init__(self, model: bytes, role: Role = "lm") -> None:
        import sentencepiece

        self._model = bytes(model)
        self._role: Role = role
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self._model)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"these {len(self._model)} bytes are no sentencepiece model") from error
        if not self._processor.IsControl(SPECIAL) or self._processor.unk_id() != UNKNOWN:
            raise CheckpointError(
                f"this sentencepiece model has {self._processor.IdToPiece(SPECIAL)!r} at id 0 and <unk> at "
                f"id {self._processor.unk_id()}; here id 0 is the special slot and <unk> is id 1. Train one "
                "with: ilme text bpe, or give sentencepiece eos_id=0, unk_id=1, bos_id=-1, pad_id=-1"
            )

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int = 4000,
        *,
        role: Role = "lm",
        coverage: float = 1.0,
        threads: int = 1,
    ) -> SentencePieceTokenizer:
        """Learns pieces from text.

        Args:
            lines: Sentences, streamed once.
            vocab_size: All ids, special slot and <unk> included: 4000 gives the paper's 3,999 labels and <b>.
            role: What id 0 stands for in `tokens`.
            coverage: Share of the characters of the text that get a piece; the rest become <unk>.
            threads: The result does not depend on it.
        """
        import sentencepiece

        model = io.BytesIO()
        counted = _Counted(lines)
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(counted),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                character_coverage=coverage,
                eos_id=SPECIAL,
                eos_piece="<eos>",
                unk_id=UNKNOWN,
                bos_id=-1,
                pad_id=-1,
                num_threads=threads,
                max_sentence_length=4 * _LONGEST_LINE,
                minloglevel=2,
            )
        except RuntimeError as error:
            if counted.lines == 0:
                raise BadInputError("a tokenizer cannot be trained on no text") from error
            raise BadInputError(
                f"sentencepiece cannot make {vocab_size} pieces out of {counted.lines} lines with "
                f"{len(counted.characters)} different characters: {error}. Each character needs a piece, and "
                "each further piece a repeated sequence: give more text or another vocab_size."
            ) from error
        return cls(model.getvalue(), role)

    @classmethod
    def load(cls, path: str | Path, role: Role = "lm") -> SentencePieceTokenizer:
        path = Path(path)
        if not path.is_file():
            raise CheckpointError(f"there is no sentencepiece model {path}; train one with: ilme text bpe")
        return cls(path.read_bytes(), role)

    def save(self, path: str | Path) -> None:
        """Writes the plain sentencepiece model, which every sentencepiece tool reads."""
        write_atomically(Path(path), self._model)

    @property
    def model(self) -> bytes:
        """The serialised sentencepiece model: all there is to this tokenizer."""
        return self._model

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "sentencepiece",
            "role": self._role,
            "model": base64.b64encode(self._model).decode("ascii"),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SentencePieceTokenizer:
        if data.get("kind") != "sentencepiece" or "model" not in data:
            raise CheckpointError(f"expected a tokenizer of kind 'sentencepiece', found {data.get('kind')!r}")
        return cls(base64.b64decode(data["model"]), data.get("role", "lm"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._model, self._role)

    def __len__(self) -> int:
        return int(self._processor.GetPieceSize())

    @cached_property
    def tokens(self) -> Tokens:
        return self.tokens_for(self._role)

    def for_role(self, role: Role) -> SentencePieceTokenizer:
        """The same pieces with id 0 as this kind of model uses it."""
        return SentencePieceTokenizer(self._model, role)

    def tokens_for(self, role: Role) -> Tokens:
        """The inventory of a model: id 0 is blank for a transducer, sos and eos for the others."""
        if role not in ("transducer", "attention", "lm"):
            raise BadInputError(f"role {role!r} must be transducer, attention or lm")
        labels = tuple(self._processor.IdToPiece(i) for i in range(1, len(self)))
        if role == "transducer":
            return Tokens(("<b>", *labels), blank=SPECIAL, unk=UNKNOWN)
        return Tokens(("<eos>", *labels), sos=SPECIAL, eos=SPECIAL, unk=UNKNOWN)

    def encode(self, text: str) -> list[int]:
        """Ids of the text; never id 0."""
        return list(self._processor.EncodeAsIds(text))

    def encode_many(self, texts: list[str], threads: int = 1) -> list[list[int]]:
        return list(self._processor.Encode(texts, out_type=int, num_threads=threads))

    def decode(self, ids: list[int]) -> str:
        """Text of the ids; id 0 is left out, <unk> is written " ⁇ "."""
        found = [int(i) for i in ids]
        wrong = next((i for i in found if not 0 <= i < len(self)), None)
        if wrong is not None:
            raise BadInputError(f"{wrong} is not an id: the tokenizer has {len(self)} pieces")
        return str(self._processor.DecodeIds([i for i in found if i != SPECIAL]))

    def unknown(self, text: str) -> list[str]:
        """The stretches of the text that become <unk>, in order."""
        pieces = zip(self._processor.EncodeAsPieces(text), self.encode(text), strict=True)
        return [piece.strip("▁") for piece, index in pieces if index == UNKNOWN]


class _Counted:
    """Passes lines on, cuts overlong ones at spaces, and remembers what an error message needs."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._source = lines
        self.lines = 0
        self.characters: set[str] = set()

    def __iter__(self) -> Any:
        for line in self._source:
            text = line.strip()
            if not text:
                continue
            self.lines += 1
            self.characters.update(text)
            yield from _cut(text) if len(text) > _LONGEST_LINE else (text,)


def _cut(text: str) -> Iterable[str]:
    while len(text) > _LONGEST_LINE:
        space = text.rfind(" ", 1, _LONGEST_LINE)
        at = space if space > 0 else _LONGEST_LINE
        yield text[:at]
        text = text[at:].lstrip()
    yield text
