"""Phrase bonuses as plainly as they can be computed: every place where a phrase stands is looked at."""

from __future__ import annotations

import random
from functools import cache

from ilme.lm.phrases import PhraseScorer, WordEdges


def phrase_bonus(sequence, phrases, edges):
    """B(y): the sum of own(p) over the places where p stands in y as whole words."""
    listed = tuple(sorted((tuple(p), float(bonus)) for p, bonus in phrases.items()))
    return sum(own(p, listed, edges) for p in standing(tuple(sequence), listed, edges))


def standing(y, listed, edges):
    """Every phrase once for each place where it stands in y."""
    for p, _ in listed:
        for i in range(len(y) - len(p) + 1):
            after = i + len(p)
            begun = edges.begins[p[0]] or i == 0 or edges.opens[y[i - 1]]
            ended = after == len(y) or edges.closes[y[after]]
            if y[i:after] == p and begun and ended:
                yield p


@cache
def own(p, listed, edges):
    """max(0, bonus(p) − Σ own of what p itself holds)."""
    return max(0.0, dict(listed)[p] - sum(own(q, listed, edges) for q in standing(p, listed, edges) if q != p))


def drawn_phrases(seed, tokens, count=6, longest=3):
    """Some phrases over the labels of an inventory and random word edges, as a scorer; and B as a function of y.

    Every bonus is so many halves for each label: floats hold its parts exactly.
    """
    draw = random.Random(seed)
    labels = [i for i in range(len(tokens)) if i not in tokens.special]
    begins, closes, opens = ([draw.random() < p for _ in range(len(tokens))] for p in (0.6, 0.3, 0.3))
    for i in range(len(tokens)):
        closes[i] |= begins[i] or i in tokens.special
        opens[i] |= i in tokens.special
    edges = WordEdges(tuple(begins), tuple(closes), tuple(opens))
    chosen = (tuple(draw.choices(labels, k=draw.randint(1, longest))) for _ in range(count))
    phrases = {p: len(p) * draw.choice([0.5, 1.0, 2.0]) for p in chosen}
    return PhraseScorer(tokens, phrases, edges), lambda y: phrase_bonus(y, phrases, edges)
