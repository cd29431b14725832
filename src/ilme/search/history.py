"""Where the labels of a beam's sequences are: a tree of nodes, each a label, its frame and its parent node.

On CPU nodes are appended as they are made. On CUDA they go into buffers at a position that is itself on the device,
so that a frame can be replayed as a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NO_NODE", "History"]

NO_NODE = -1  # the empty sequence


class History:
    """Nodes of B utterances, K at a time.

    Args:
        batch: B.
        beam: K.
        device: Where they are kept.
        buffered: Whether room is reserved for them, so that nothing waits for the device: on CUDA.
    """

    def __init__(self, batch: int, beam: int, device: torch.device, buffered: bool) -> None:
        self.beam, self.buffered = beam, buffered
        self.entries: list[tuple[Tensor, Tensor, int]] = []  # (parents, labels, frame)
        self.buffers = torch.zeros(0, 3, batch, beam, dtype=torch.long, device=device)  # parents, labels, frame
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(beam, device=device)

    def reserve(self, entries: int) -> None:
        """Makes room for this many more calls of `add`."""
        if self.buffered:
            more = torch.empty(entries, *self.buffers.shape[1:], dtype=torch.long, device=self.buffers.device)
            self.buffers = torch.cat([self.buffers, more])

    def add(self, parents: Tensor, labels: Tensor, valid: Tensor, frame: Tensor) -> Tensor:
        """Adds a node (B, K) under each parent; gives their numbers (B, K). Those not valid are never asked for."""
        if not self.buffered:
            if not bool(valid.any()):
                return parents
            self.entries.append((parents, labels, int(frame)))
            return ((len(self.entries) - 1) * self.beam + self.places).expand_as(parents)
        nodes = (self.position * self.beam + self.places).expand_as(parents)
        entry = torch.stack([parents, labels, frame.expand_as(parents)])
        self.buffers.index_copy_(0, self.position, entry[None])
        self.position.add_(1)
        return nodes

    def trace(self, nodes: list[list[int]]) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Labels and their frames, for node numbers of each utterance."""
        if self.buffered:
            used = int(self.position)
            parents, labels, frames = (x.tolist() for x in self.buffers[:used].unbind(1))
        else:
            parents = [p.tolist() for p, _, _ in self.entries]
            labels = [v.tolist() for _, v, _ in self.entries]
            frames = [t for _, _, t in self.entries]

        def path(b: int, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            found, times = [], []
            while node != NO_NODE:
                entry, place = divmod(node, self.beam)
                found.append(labels[entry][b][place])
                times.append(frames[entry] if isinstance(frames[entry], int) else frames[entry][b][place])
                node = parents[entry][b][place]
            return tuple(reversed(found)), tuple(reversed(times))

        return [[path(b, node) for node in row] for b, row in enumerate(nodes)]
