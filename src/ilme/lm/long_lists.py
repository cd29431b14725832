"""Listed phrases in a crowd: the longer the list, the likelier is a phrase that sounds like a word which is not.

    crowd = CROWD · log(max(N, MANY) / MANY)          of N listed phrases
    earned(p, k) = bonus(p) · max(0, k − crowd) / n   by the first k of the n labels of p

So `crowd` labels of each phrase earn nothing, and they are its first, where most of the list could still be meant. Both
what a whole phrase is worth and what a search holds while it writes one follow from it (`ilme.lm.phrases`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ilme.lm.phrases import Labels, PhraseScorer, WordEdges, _Trie
from ilme.tokens import Tokens

__all__ = ["CrowdedPhrases", "crowd"]

MANY = 500  # phrases: a longer list is long
CROWD = 0.5  # labels without a bonus in a list e times as long; chosen on dev, docs/results/phrases.md


def crowd(count: int) -> float:
    """How many labels of each phrase earn nothing in a list of so many."""
    return CROWD * math.log(max(count, MANY) / MANY)


class CrowdedPhrases(PhraseScorer):
    """A phrase scorer in which the first labels of every phrase earn nothing.

    Args:
        tokens: The inventory.
        phrases: The bonus of each phrase, by its labels, were it alone.
        edges: Where words begin and end.
        device: Where it runs.
        crowd: How many labels.
    """

    def __init__(
        self,
        tokens: Tokens,
        phrases: Mapping[Labels, float],
        edges: WordEdges,
        device: torch.device | str = "cpu",
        crowd: float = 0.0,
    ) -> None:
        self.crowd = crowd
        super().__init__(tokens, phrases, edges, device)

    def _place(self, trie: _Trie, size: int) -> None:
        if self.crowd:
            for node in trie.nodes[2:]:  # all but the roots
                share = max(0.0, node.depth - self.crowd) / node.depth
                node.part, node.bonus = share * node.part, share * node.bonus
            trie.link()
        super()._place(trie, size)
