"""Scores of whole token sequences under a scorer, each shared prefix computed once.

A search runs only the scorers whose weight is not 0. To ask what another weight would have chosen, the
hypotheses it found need the other scorers' scores too: `complete` fills them in. What a subtracted scorer would say
with another share of the background (`ilme.smoothing`) comes out of the same rows: any number of shares takes one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import TokenScorer
from ilme.runtime.state import select
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.smoothing import Smoothing, uniform

__all__ = ["IMPOSSIBLE", "SequenceScorer", "SmoothedLists", "complete", "finite", "sequence_scores", "smoothed_scores"]

Tokens = tuple[int, ...]
Smooth = Callable[[Tensor], Tensor]  # rows (n, V) to rows (n, V)
ROWS = 1024  # prefixes scored at once
IMPOSSIBLE = -1e5  # stands for log 0 in a list: finite, so that a weight of 0 takes it away


def sequence_scores(
    scorer: TokenScorer, sequences: Sequence[Sequence[int]], *, finish: bool = False, rows: int = ROWS
) -> Tensor:
    """log P(y) = Σ_u log P(y_u | y_{<u}) [+ log P(end | y)] of each sequence: (n,) float64, on CPU.

    Sequences are sorted and taken in groups whose prefixes form a tree of at most `rows` nodes a level; each
    node is scored once, and a last label whose continuation is not asked for is not scored at all.

    Args:
        scorer: An LM, internal or external.
        sequences: Token ids without special ids.
        finish: Whether the end of the sentence is scored.
        rows: Most sequences that the scorer sees at once.
    """
    return smoothed_scores(scorer, sequences, [lambda row: row], finish=finish, rows=rows)[:, 0]


def smoothed_scores(
    scorer: TokenScorer,
    sequences: Sequence[Sequence[int]],
    smoothings: Sequence[Smooth],
    *,
    finish: bool = False,
    rows: int = ROWS,
) -> Tensor:
    """`sequence_scores` of a scorer smoothed in each of E ways, in one pass: (n, E) float64, on CPU."""
    plain = [tuple(int(t) for t in s) for s in sequences]
    size = len(scorer.tokens)
    bad = next((t for s in plain for t in s if not 0 <= t < size), None)
    if bad is not None:
        raise BadInputError(f"token id {bad} is not one of the scorer's {size} tokens")
    found: dict[Tokens, Tensor] = {}
    ordered = sorted(set(plain))
    for begin in range(0, len(ordered), rows):
        found.update(_tree_scores(scorer, ordered[begin : begin + rows], smoothings, finish))
    return torch.stack([found[s] for s in plain]) if plain else torch.zeros(0, len(smoothings), dtype=torch.float64)


@torch.no_grad()
def _tree_scores(
    scorer: TokenScorer, sequences: list[Tokens], smoothings: Sequence[Smooth], finish: bool
) -> dict[Tokens, Tensor]:
    """Scores (E,) of each; level by level through the tree of prefixes, of which those are scored whose row is read."""
    wanted = set(sequences)
    read = {s[:d] for s in sequences for d in range(len(s))} | (wanted if finish else set())
    totals = torch.zeros(1, len(smoothings), dtype=torch.float64)
    out = {} if finish else {s: totals[0] for s in wanted if not s}
    row, state = scorer.start(1)
    level: dict[Tokens, int] = {(): 0}  # the prefixes of this length that have a row, and which row it is
    for depth in range(max(map(len, sequences), default=0) + 1):
        ways = [smooth(row) for smooth in smoothings]
        if finish:
            ends = torch.stack([scorer.finish(way).double().cpu() for way in ways], 1) + totals
            out.update({p: ends[k] for p, k in level.items() if p in wanted})
        children = list(dict.fromkeys(s[: depth + 1] for s in sequences if len(s) > depth))
        if not children:
            break
        parents = torch.tensor([level[c[:-1]] for c in children])
        labels = torch.tensor([c[-1] for c in children])
        gains = [_picked(way, parents, labels, len(scorer.tokens)) for way in ways]
        reached = totals[parents] + torch.stack(gains, 1)
        if not finish:
            out.update({c: reached[k] for k, c in enumerate(children) if c in wanted})
        inner = [k for k, c in enumerate(children) if c in read]
        if not inner:
            break
        keep = torch.tensor(inner)
        row, state = scorer.score(labels[keep].to(scorer.device), select(state, parents[keep].to(scorer.device)))
        level = {children[k]: n for n, k in enumerate(inner)}
        totals = reached[keep]
    return out


def _picked(rows: Tensor, parents: Tensor, labels: Tensor, size: int) -> Tensor:
    """rows[parent, label] (m,) in float64, on CPU; a row of one number stands for every label."""
    return rows.expand(len(rows), size)[parents.to(rows.device), labels.to(rows.device)].double().cpu()


class SequenceScorer:
    """`sequence_scores` that remembers: a sequence is scored once, however many decodes find it.

    Args:
        scorer: An LM, internal or external.
        finish: Whether the end of the sentence is scored.
        rows: Most sequences that the scorer sees at once.
    """

    def __init__(self, scorer: TokenScorer, *, finish: bool = False, rows: int = ROWS) -> None:
        self.scorer, self.finish, self.rows = scorer, finish, rows
        self.known: dict[Tokens, float] = {}

    def __call__(self, sequences: Iterable[Tokens]) -> list[float]:
        asked = [tuple(s) for s in sequences]
        new = list(dict.fromkeys(s for s in asked if s not in self.known))
        if new:
            scores = sequence_scores(self.scorer, new, finish=self.finish, rows=self.rows)
            self.known.update(zip(new, scores.tolist(), strict=True))
        return [self.known[s] for s in asked]


class SmoothedLists:
    """n-best lists as they would be with other shares ε of the background in what is subtracted.

    A sequence is scored once for all shares, however many lists hold it.

    Args:
        scorer: What is subtracted, as it is.
        shares: The values of ε.
        background: log q (V,); None is uniform.
        finish: Whether the end of the sentence is scored.
        rows: Most sequences that the scorer sees at once.
    """

    def __init__(
        self,
        scorer: TokenScorer,
        shares: Sequence[float],
        *,
        background: Tensor | None = None,
        finish: bool = False,
        rows: int = ROWS,
    ) -> None:
        self.scorer, self.shares, self.finish, self.rows = scorer, tuple(shares), finish, rows
        log_q = uniform(scorer.tokens, scorer.device) if background is None else background
        self.smoothings = [Smoothing(share, log_q) for share in self.shares]
        self.known: dict[Tokens, list[float]] = {}

    def __call__(self, lists: Mapping[str, NBest]) -> dict[float, dict[str, NBest]]:
        """The lists with each share's subtracted scores, by share."""
        found = (h.tokens for nbest in lists.values() for h in nbest)
        new = list(dict.fromkeys(tokens for tokens in found if tokens not in self.known))
        if new:
            scores = smoothed_scores(self.scorer, new, self.smoothings, finish=self.finish, rows=self.rows)
            self.known.update(zip(new, scores.tolist(), strict=True))
        return {share: finite(self._with(lists, k)) for k, share in enumerate(self.shares)}

    def _with(self, lists: Mapping[str, NBest], k: int) -> dict[str, NBest]:
        return {
            i: [replace(h, scores=replace(h.scores, subtracted=self.known[h.tokens][k])) for h in nbest]
            for i, nbest in lists.items()
        }


def finite(lists: Mapping[str, NBest]) -> dict[str, NBest]:
    """The same lists with log 0 written as `IMPOSSIBLE`; any other score that is not a number is an error."""
    return {i: [_finite(i, h) for h in nbest] for i, nbest in lists.items()}


def _finite(name: str, hypothesis: Hypothesis) -> Hypothesis:
    scores = hypothesis.scores
    values = (scores.asr, scores.lm, scores.subtracted, scores.length, scores.phrases)
    if all(map(math.isfinite, values)):
        return hypothesis
    if any(v != v or v == math.inf for v in values):
        raise BadInputError(
            f"utterance {name!r} has a hypothesis with scores asr {scores.asr}, lm {scores.lm}, subtracted "
            f"{scores.subtracted}, phrases {scores.phrases}: check the model or scorer that gave what is not a number"
        )
    floored = {n: max(getattr(scores, n), IMPOSSIBLE) for n in ("asr", "lm", "subtracted")}
    return replace(hypothesis, scores=replace(scores, **floored))


def complete(
    lists: Mapping[str, NBest],
    *,
    lm: SequenceScorer | None = None,
    subtracted: SequenceScorer | None = None,
    phrases: SequenceScorer | None = None,
) -> dict[str, NBest]:
    """The same lists with the given scorers' components filled in; every other component stays as it is."""
    hypotheses = [h for nbest in lists.values() for h in nbest]
    columns: dict[str, list[float]] = {}
    for name, scorer in (("lm", lm), ("subtracted", subtracted), ("phrases", phrases)):
        if scorer is not None:
            columns[name] = scorer(h.tokens for h in hypotheses)
    filled = iter(
        replace(h, scores=replace(h.scores, **{name: column[k] for name, column in columns.items()}))
        for k, h in enumerate(hypotheses)
    )
    return {i: [next(filled) for _ in nbest] for i, nbest in lists.items()}
