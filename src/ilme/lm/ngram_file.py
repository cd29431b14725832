"""N-gram models on disk, in a form that loads at once: the arrays of the automaton, mapped into memory.

The file is safetensors: the model's order and inventory in the header, then `key`, `first`, `log_prob`, `target`,
`backoff` and `shorter` as `ilme.lm.ngram.Automaton` has them. A search follows the arrays without a look, so that all
of them are checked when a file is opened, block by block. Of a large file nothing is copied, and processes that read it
share it; whoever cuts it off, or copies another over it, ends them (the system's SIGBUS): it must be replaced by
renaming, as everything here is written. Smaller files are read, and may change then.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ilme.errors import BadInputError, CheckpointError
from ilme.lm.arpa import LARGEST_BACKOFF, MOST_ORDERS, NEVER
from ilme.runtime.configs import config_from_json, json_object
from ilme.runtime.files import atomic_path
from ilme.tokens import Tokens

__all__ = ["Automaton", "Stored", "new_ngram_file", "read_ngram_file"]

FORMAT = "ilme-ngram-2"
WITHOUT_FIRST = "ilme-ngram-1"  # of earlier versions: wider numbers, and no `first`
BLOCK = 1 << 22  # numbers that are checked at a time
LARGE = 1 << 26  # bytes from which a file is mapped and not read
DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}

Array = NDArray[Any]


@dataclass(frozen=True)
class Automaton:
    """The contexts and arcs of a back-off model over W = V + 1 symbols (V is the sentence start).

    Arcs are sorted by (node, symbol). Node 0 is the empty context; its arcs 0 … W−1 are the unigrams. The
    arc a of an n-gram below the highest order leads to the node a + 1, the context it forms.

    Attributes:
        key: node · W + symbol of each arc, ascending (A,).
        log_prob: ln P of each arc (A,).
        target: The node after each arc (A,).
        first: The arcs of node i are first[i] … first[i + 1] − 1 (nodes + 1,).
        backoff: ln of each node's back-off weight (nodes,).
        shorter: The node of the longest known shorter context (nodes,); 0 for node 0.
        order: The model's order N: a chain of contexts has at most N − 1 nodes above node 0.
    """

    key: Array
    log_prob: Array
    target: Array
    first: Array
    backoff: Array
    shorter: Array
    order: int


@dataclass(frozen=True)
class Stored:
    """The header of a file: what the arrays do not say.

    Attributes:
        order: The model's order.
        tokens: Its inventory.
        missing: Ids that it has no unigram for.
        unknown: The id under which it knows `<unk>`.
    """

    order: int
    tokens: Tokens
    missing: tuple[int, ...] = ()
    unknown: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MOST_ORDERS:
            raise BadInputError(f"the order must lie between 1 and {MOST_ORDERS}, got {self.order}")
        named = [*self.missing, *(() if self.unknown is None else (self.unknown,))]
        if any(not 0 <= i < len(self.tokens) for i in named):
            raise BadInputError(f"ids without a unigram must be among the {len(self.tokens)} tokens")
        if self.missing and self.unknown is None:
            raise BadInputError("ids without a unigram need the id that stands for them")


@contextmanager
def new_ngram_file(path: str | os.PathLike[str], stored: Stored, arcs: int, nodes: int) -> Iterator[Automaton]:
    """An automaton to fill, whose file takes the place of `path` when the block ends well."""
    node = "I32" if nodes < 2**31 else "I64"
    arrays = {
        "key": ("I64", arcs),
        "first": ("I64", nodes + 1),
        "log_prob": ("F32", arcs),
        "target": (node, arcs),
        "backoff": ("F32", nodes),
        "shorter": (node, nodes),
    }
    about = {"order": stored.order, "missing": stored.missing, "unknown": stored.unknown}
    ngram = json.dumps(about | {"tokens": stored.tokens.to_json()})
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "ngram": ngram}}
    size = 0
    for name, (dtype, count) in arrays.items():
        end = size + count * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(Path(path)) as partial:
        with partial.open("xb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + size)
            if hasattr(os, "posix_fallocate"):  # a full disk is then an error here, not a signal while it is filled
                os.posix_fallocate(stream.fileno(), 8 + len(text), size)
        mapped = _mapped(partial, header, 8 + len(text), "r+")
        yield Automaton(**mapped, order=stored.order)
        for array in mapped.values():
            if isinstance(array, np.memmap):
                array.flush()


def read_ngram_file(path: str | os.PathLike[str]) -> tuple[Automaton, Stored]:
    """What such a file holds; the arrays are views of it."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise CheckpointError(f"no n-gram model at {path}")
    damaged = f"{path} is damaged or of another version"
    try:
        with safe_open(path, "numpy") as file:  # it checks the header and that the file is whole
            metadata = file.metadata() or {}
        with Path(path).open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(size))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{damaged}: {error}; write it again") from error
    if metadata.get("format") not in (FORMAT, WITHOUT_FIRST):
        raise CheckpointError(f"{path} is not an n-gram model: its format is {metadata.get('format')!r}")
    try:
        stored = config_from_json(Stored, json_object(metadata.get("ngram", "null"), "entry 'ngram' of its header"))
        large = Path(path).stat().st_size >= LARGE
        arrays = _mapped(Path(path), header, 8 + size, "c") if large else _read(Path(path), header, 8 + size)
        return _checked(stored, arrays, with_first=metadata["format"] == FORMAT), stored
    except (BadInputError, CheckpointError, OSError) as error:
        raise CheckpointError(f"{damaged}: {error}; write it again") from error


def _mapped(path: Path, header: Mapping[str, Any], start: int, mode: Any) -> dict[str, Array]:
    """The arrays of a file with this header, whose numbers begin at `start`."""
    found = {}
    for name, dtype, count, at in _places(header, start):
        empty: Array = np.zeros(0, dtype)
        found[name] = np.memmap(path, dtype, mode, at, (count,)) if count else empty
    return found


def _read(path: Path, header: Mapping[str, Any], start: int) -> dict[str, Array]:
    """The same arrays, in memory."""
    return {name: np.fromfile(path, dtype, count, offset=at) for name, dtype, count, at in _places(header, start)}


def _places(header: Mapping[str, Any], start: int) -> Iterator[tuple[str, np.dtype[Any], int, int]]:
    """Name, type, length and place of each array."""
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in DTYPES or len(about["shape"]) != 1:
            raise BadInputError(f"{name} is no list of numbers that such a file has")
        yield name, DTYPES[about["dtype"]], about["shape"][0], start + about["data_offsets"][0]


def _checked(stored: Stored, arrays: dict[str, Array], with_first: bool) -> Automaton:
    kinds = {"key": "i", "log_prob": "f", "target": "i", "backoff": "f", "shorter": "i"}
    kinds |= {"first": "i"} if with_first else {}
    if set(arrays) != set(kinds):
        raise BadInputError(f"it must hold {', '.join(kinds)} and holds {', '.join(sorted(arrays))[:200]}")
    for name, kind in kinds.items():
        if arrays[name].dtype.kind != kind:
            raise BadInputError(f"{name} is no list of {'whole ' if kind == 'i' else ''}numbers")
    key, target, shorter = arrays["key"], arrays["target"], arrays["shorter"]
    log_prob, backoff = arrays["log_prob"], arrays["backoff"]
    width, nodes = len(stored.tokens) + 1, len(backoff)
    if not len(key) == len(log_prob) == len(target) or not len(shorter) == nodes >= 1:
        raise BadInputError("its arrays differ in length")
    if nodes > 1 and nodes <= width:
        raise BadInputError(f"it has {nodes} contexts, too few for an inventory of {width - 1} tokens")
    if len(key) < width or not np.array_equal(key[:width], np.arange(width)):
        raise BadInputError(f"key does not begin with the {width} unigrams of its inventory")
    if key[-1] >= nodes * width or not _all(lambda a, b: key[a + 1 : b + 1] > key[a : min(b, len(key) - 1)], len(key)):
        raise BadInputError("key is not ascending, or names contexts that are not there")
    if not _all(lambda a, b: (target[a:b] >= 0) & (target[a:b] < nodes), len(key)):
        raise BadInputError("target names contexts that are not there")
    if (nodes == 1) != (stored.order == 1):
        raise BadInputError(f"a model of order {stored.order} cannot have {nodes} contexts")
    _check_shorter(shorter, stored.order)
    if not _all(lambda a, b: log_prob[a:b] <= 1e-5, len(key)):
        raise BadInputError("log_prob holds NaN, or a probability above 1")
    if not _all(lambda a, b: backoff[a:b] <= LARGEST_BACKOFF, nodes):
        raise BadInputError(f"backoff holds NaN, or a weight above exp({LARGEST_BACKOFF:.0f})")
    first = arrays["first"] if with_first else np.searchsorted(key, np.arange(nodes + 1) * width)
    if with_first:
        _check_first(first, key, nodes, width)
    return Automaton(key, _floored(log_prob), target, first, _floored(backoff), shorter, stored.order)


def _check_shorter(shorter: Array, order: int) -> None:
    """A context is stored after the shorter ones: so no chain of back-offs comes back to where it was."""
    nodes = len(shorter)
    earlier = _all(lambda a, b: (shorter[a:b] >= 0) & (shorter[a:b] < np.maximum(np.arange(a, b), 1)), nodes)
    if shorter[0] != 0 or not earlier:
        raise BadInputError("shorter does not lead from each context to an earlier one")

    def ends(a: int, b: int) -> Array:
        chain = shorter[a:b]
        for _ in range(order - 2):
            chain = shorter[chain]
        return np.asarray(chain == 0)

    if not _all(ends, nodes):
        raise BadInputError(f"a context has more shorter ones than order {order} allows")


def _check_first(first: Array, key: Array, nodes: int, width: int) -> None:
    """first[i] is the number of arcs whose context comes before i: the key before it is smaller, its own is not."""
    if len(first) != nodes + 1 or first[0] != 0 or first[-1] != len(key):
        raise BadInputError("first does not say where each context's arcs begin")

    def right(a: int, b: int) -> Array:
        at, least = first[a:b], np.arange(a, b) * width
        inside = (at >= 0) & (at <= len(key))
        at = np.where(inside, at, 0)
        before = (at == 0) | (key[np.maximum(at, 1) - 1] < least)
        after = (at == len(key)) | (key[np.minimum(at, len(key) - 1)] >= least)
        return np.asarray(inside & before & after)

    if not _all(right, nodes + 1):
        raise BadInputError("first does not say where each context's arcs begin")


def _all(true: Callable[[int, int], Array], count: int) -> bool:
    """Whether a condition holds for every number of an array, which is looked at block by block."""
    return all(bool(true(a, min(a + BLOCK, count)).all()) for a in range(0, count, BLOCK))


def _floored(logs: Array) -> Array:
    """Logarithms of which none is below NEVER; those of a file that this module wrote are not touched."""
    if _all(lambda a, b: logs[a:b] >= np.float32(NEVER) - 1e-3, len(logs)):
        return logs
    floored: Array = np.maximum(logs, NEVER)
    return floored
