"""Shards, in which a study keeps its training speech: some utterances to a file, and a list of them beside it.

    FILE.i16     the samples of one utterance after another, little-endian
    FILE.json    ids, texts, voices and sizes, of each utterance one; written last, so that it says: the shard is whole

No torch, so that processes that write shards start fast.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError
from ilme.runtime.files import atomic_stream, write_json

__all__ = ["SHARD", "Listed", "is_whole", "list_shards", "read_samples", "write_shard"]

SHARD = 200  # utterances in a file


@dataclass(frozen=True)
class Listed:
    """What the lists of shards say.

    Attributes:
        ids: Names of the utterances.
        texts: What is said.
        voices: By whom.
        sizes: Samples of each.
    """

    ids: list[str]
    texts: list[str]
    voices: list[str]
    sizes: list[int]


def is_whole(file: Path) -> bool:
    """Whether the shard of that path, which has no ending, has been written to its end."""
    return file.with_suffix(".json").is_file()


def write_shard(
    file: Path, ids: Sequence[str], texts: Sequence[str], voices: Sequence[str], waves: Sequence[NDArray[np.int16]]
) -> None:
    """Writes one shard; `file` has no ending."""
    with atomic_stream(file.with_suffix(".i16")) as stream:
        for wave in waves:
            stream.write(wave.astype("<i2").tobytes())
    about = {"ids": list(ids), "texts": list(texts), "voices": list(voices), "sizes": [len(wave) for wave in waves]}
    write_json(file.with_suffix(".json"), about, indent=None)


def list_shards(folder: Path) -> Listed:
    """The utterances of all shards of a folder, in their order."""
    lists = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return Listed(*([x for one in lists for x in one[name]] for name in ("ids", "texts", "voices", "sizes")))


def read_samples(folder: Path, count: int) -> NDArray[np.int16]:
    """The samples of all shards of a folder, in the order of their utterances; there must be `count` of them."""
    samples = np.empty(count, dtype=np.int16)
    at = 0
    for path in sorted(folder.glob("*.json")):
        data = np.fromfile(path.with_suffix(".i16"), dtype="<i2")
        if at + len(data) <= count:
            samples[at : at + len(data)] = data
        at += len(data)
    if at != count:
        raise BadInputError(f"{folder} holds {at} samples, its lists say {count}; remove it and start again")
    return samples
