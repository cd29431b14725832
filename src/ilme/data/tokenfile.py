"""Token files: text as ids, memory-mapped, with the inventory inside.

Layout: the 8 bytes `ILMETOK1`; the size of the header as a little-endian uint32; the header, JSON padded with spaces so
that the ids start at a multiple of 64 bytes; then the ids, little-endian uint16 (uint32 above 65,536 pieces), every
sentence followed by the id of the end of sentence. The header holds `dtype`, `count` (ids, ends included), `sentences`,
`tokens` (the inventory) and `tokenizer` (what made the ids, or null).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.files import atomic_stream
from ilme.tokens import Tokens

__all__ = ["TokenFile", "write_tokens"]

MAGIC = b"ILMETOK1"
ALIGNMENT = 64
_COUNT_DIGITS = 20  # room for counts that are known only at the end


class TokenFile:
    """A token file, open for reading.

    Attributes:
        ids: Every id (count,), a read-only view of the file: reading a part of it loads that part only.
        inventory: The tokens; `inventory.eos` ends every sentence.
        sentences: How many sentences there are.
        tokenizer: What made the ids, as its `to_json` says; None if unknown.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise CheckpointError(f"no token file at {self.path}; make one with: ilme text tokenize")
        with self.path.open("rb") as file:
            start = file.read(len(MAGIC) + 4)
            if len(start) < len(MAGIC) + 4 or not start.startswith(MAGIC):
                raise CheckpointError(f"{self.path} is not a token file; make one with: ilme text tokenize")
            size = struct.unpack("<I", start[len(MAGIC) :])[0]
            header = file.read(size)
        try:
            data: dict[str, Any] = json.loads(header)
            dtype = np.dtype({"uint16": "<u2", "uint32": "<u4"}[data["dtype"]])
            count = int(data["count"])
            self.sentences = int(data["sentences"])
            self.inventory = Tokens.from_json(data["tokens"])
            self.tokenizer: dict[str, Any] | None = data["tokenizer"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path} has a damaged header ({error!r}); make it again") from error
        offset = len(start) + size
        found = self.path.stat().st_size - offset
        if found != count * dtype.itemsize:
            raise CheckpointError(
                f"{self.path} should hold {count} ids of {dtype.itemsize} bytes and has {found} bytes of them: "
                "it was cut off; make it again"
            )
        self.ids: NDArray[np.unsignedinteger[Any]] = (
            np.memmap(self.path, dtype, "r", offset, (count,)) if count else np.zeros(0, dtype)
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[NDArray[np.unsignedinteger[Any]]]:
        """Each sentence without its end, in order."""
        start, block = 0, 1 << 22
        for at in range(0, len(self.ids), block):
            for end in (np.flatnonzero(self.ids[at : at + block] == self.inventory.eos) + at).tolist():
                yield self.ids[start:end]
                start = end + 1


def write_tokens(
    path: str | os.PathLike[str],
    sentences: Iterable[Sequence[int]],
    inventory: Tokens,
    tokenizer: dict[str, Any] | None = None,
) -> tuple[int, int]:
    """Writes a token file, atomically and in constant memory.

    Args:
        path: The file to write.
        sentences: The ids of each sentence, without its end; empty ones are left out.
        inventory: The tokens; they need an end of sentence.
        tokenizer: What made the ids, kept in the header.

    Returns:
        The number of sentences and of ids, ends included.
    """
    if inventory.eos is None:
        raise BadInputError("a token file needs an inventory with an end of sentence (eos)")
    dtype = np.dtype("<u2") if len(inventory) <= 1 << 16 else np.dtype("<u4")
    written = lines = 0
    with atomic_stream(Path(path)) as file:
        file.write(_header(dtype, 0, 0, inventory, tokenizer))
        batch: list[int] = []
        for sentence in sentences:
            if not len(sentence):
                continue
            batch.extend(sentence)
            batch.append(inventory.eos)
            lines += 1
            if len(batch) >= 1 << 18:
                written += _write_batch(file, batch, dtype, inventory)
                batch = []
        written += _write_batch(file, batch, dtype, inventory)
        file.seek(0)
        file.write(_header(dtype, written, lines, inventory, tokenizer))
    return lines, written


def _write_batch(file: Any, batch: list[int], dtype: np.dtype[Any], inventory: Tokens) -> int:
    ids = np.array(batch, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= len(inventory)):
        raise BadInputError(f"ids {ids.min()} … {ids.max()} do not fit an inventory of {len(inventory)} tokens")
    file.write(ids.astype(dtype).tobytes())
    return len(ids)


def _header(
    dtype: np.dtype[Any], count: int, sentences: int, inventory: Tokens, tokenizer: dict[str, Any] | None
) -> bytes:
    """The start of the file; its size does not depend on the counts."""
    data = {
        "dtype": dtype.name,
        "count": count,
        "sentences": sentences,
        "tokens": inventory.to_json(),
        "tokenizer": tokenizer,
    }
    text = json.dumps(data, ensure_ascii=False).encode()
    spare = 2 * _COUNT_DIGITS - len(str(count)) - len(str(sentences))
    text += b" " * spare
    text += b" " * (-(len(MAGIC) + 4 + len(text)) % ALIGNMENT)
    return MAGIC + struct.pack("<I", len(text)) + text
