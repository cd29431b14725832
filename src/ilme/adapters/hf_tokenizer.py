"""Tokenizers as `transformers` has them, with the inventory that they write in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ilme.errors import CheckpointError, MissingExtraError
from ilme.tokens import Tokens

__all__ = ["HuggingFaceTokenizer", "TokenizerFile"]


class HuggingFaceTokenizer:
    """A `transformers` tokenizer with the inventory it writes in.

    Args:
        tokenizer: The tokenizer.
        size: Output units of the model; ids that the tokenizer does not know get a name of their own.
        sos, eos: The ids that start and end a sequence; None for a model that is searched frame by frame.
        lead: What stands before a text inside the model, " " for Whisper.
        blank: The blank's id, for such a model. Its tokenizer reads alignments, in which equal neighbours are one
            label; ids here are labels, so it is told not to.
    """

    def __init__(
        self,
        tokenizer: Any,
        size: int,
        sos: int | None = None,
        eos: int | None = None,
        lead: str = "",
        blank: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._lead = lead
        names = tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))
        names = [f"<id {i}>" if name is None else str(name) for i, name in enumerate(names)]
        names += [f"<id {i}>" for i in range(len(names), size)]
        self._reading = {"skip_special_tokens": True} | ({} if blank is None else {"group_tokens": False})
        unk = None if blank is None else next((i for i, n in enumerate(names) if n == "<unk>" and i != blank), None)
        self._tokens = Tokens(tuple(names), blank=blank, sos=sos, eos=eos, unk=unk)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        text = text.strip()
        return self.encode_raw(self._lead + text) if text else []

    def encode_raw(self, text: str) -> list[int]:
        """Ids of the text exactly as it stands, without the lead."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], **self._reading)).strip()


class TokenizerFile:
    """What a tokenizer.json holds, with the calls that `HuggingFaceTokenizer` makes; `transformers` is not needed."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise MissingExtraError("tokenizers", "hf") from error
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; the tokenizer belongs beside the model")
        try:
            self._fast = Fast.from_file(str(path))
        except Exception as error:  # `tokenizers` raises plain exceptions for damaged files; the cause stays attached
            raise CheckpointError(f"{path} is no tokenizer: {error}") from error

    def __len__(self) -> int:
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        return [self._fast.id_to_token(i) for i in ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens))
