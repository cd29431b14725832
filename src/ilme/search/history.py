"""Where the labels of a beam's sequences are: a tree of nodes, each a label, its frame and its parent node."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["NO_NODE", "History", "traced"]

NO_NODE = -1  # the empty sequence
Integers = np.ndarray[Any, np.dtype[np.int64]]


class History:
    """Nodes of B utterances, K at a time.

    Args:
        beam: K.
        device: Where they are kept.
    """

    def __init__(self, beam: int, device: torch.device) -> None:
        self.beam = beam
        self.entries: list[tuple[Tensor, Tensor, int]] = []  # (parents, labels, frame)
        self.places = torch.arange(beam, device=device)

    def add(self, parents: Tensor, labels: Tensor, valid: Tensor, frame: int) -> Tensor:
        """Adds a node (B, K) under each parent; gives their numbers (B, K). Those not valid are never asked for."""
        if not (parents.is_cuda or bool(valid.any())):  # a CUDA device is not waited for
            return parents
        self.entries.append((parents, labels, frame))
        return ((len(self.entries) - 1) * self.beam + self.places).expand_as(parents)

    def trace(self, nodes: list[list[int]]) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Labels and their frames, for node numbers of each utterance."""
        if not self.entries:
            return [[((), ()) for _ in row] for row in nodes]
        parents, labels, frames = zip(*self.entries, strict=True)
        return traced(torch.stack(parents).cpu().numpy(), torch.stack(labels).cpu().numpy(), np.array(frames), nodes)


def traced(
    parents: Integers, labels: Integers, frames: Integers, nodes: list[list[int]], entries: Integers | None = None
) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Labels and their frames, for node numbers of each utterance; all of them are followed at once.

    Parents and labels are (E, B, K), frames (E,); node n is place n mod K of entry n // K. Where not all entries are
    there, `entries` (E,) says which, in rising order.
    """
    row = np.repeat(np.arange(len(nodes)), [len(of) for of in nodes])
    at = np.array([n for of in nodes for n in of], dtype=np.int64)
    found, times, depth = [], [], np.zeros(len(at), dtype=np.int64)
    while (at != NO_NODE).any():
        entry, place = np.divmod(np.maximum(at, 0), parents.shape[2])
        entry = entry if entries is None else np.minimum(entries.searchsorted(entry), len(entries) - 1)
        found.append(labels[entry, row, place])
        times.append(frames[entry])
        depth += at != NO_NODE
        at = np.where(at == NO_NODE, NO_NODE, parents[entry, row, place])
    steps = len(found)
    forward = [np.stack(x[::-1], 1).tolist() if x else [[] for _ in at] for x in (found, times)]
    paths = iter([(tuple(y[steps - n :]), tuple(t[steps - n :])) for y, t, n in zip(*forward, depth, strict=True)])
    return [[next(paths) for _ in of] for of in nodes]
