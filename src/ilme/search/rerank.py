"""Ranks the best hypotheses of an approximate search again, by scores of the exact networks.

A search in 8 bits or with a blank gate ranks by estimates. Two hypotheses that lie closer than those err may end in the
wrong order, and their scores are no probabilities. So the first few are scored once more, by networks that are exact:

    transducer   log P(y|x) = log Σ P(alignment | x), over the alignments that emit each label within `band` frames of
                 where the search emitted it; what lies outside is negligible unless alignments are vague
    attention    log P(y|x) = Σ_u log P(y_u | x, y_{<u}), <eos> included

and by the exact LMs, if these are given. What hypotheses share is computed once: (t, prefix) in a transducer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.protocols import AttentionDecoder, TokenScorer, Transducer
from ilme.runtime.lattice import NEGATIVE, forward_scores
from ilme.runtime.state import State, select
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.rescoring import sequence_scores
from ilme.smoothing import smoothed

__all__ = ["ExactRanking", "attention_scores", "transducer_scores"]

CHUNK = 512  # nodes of the lattice whose whole vocabulary is computed at once

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class ExactRanking:
    """Scores the first `best` hypotheses of each list again, and puts them in that order; the others follow as found.

    Scores of the first and of the others are then not comparable: rank what is read, not lists to tune weights on.

    Attributes:
        model: The exact network, or a more exact one, such as `packed_copy(rnnt, "int8", linear="float32")`: LSTMs in
            float32, label by label for a few rows, wait for memory.
        weights: Those of the search.
        lm: The exact external LM; None keeps the search's scores of it.
        subtracted: The exact subtracted LM; None keeps the search's scores of it.
        best: Hypotheses of each utterance that are scored again.
        band: Frames by which an alignment may differ from the search's at each label (transducers).
        scores_end: Whether the end of the sentence is part of the external LM's scores.
        subtracted_end: The same of the subtracted LM's; None: as `scores_end`.
        length_normalisation: α, where the search ranks by score / (|y| + 1)^α.
        background: log q (V,), which smooths what is subtracted where the weights say so; None is uniform.
    """

    model: Transducer | AttentionDecoder
    weights: FusionWeights
    lm: TokenScorer | None = None
    subtracted: TokenScorer | None = None
    best: int = 4
    band: int = 5
    scores_end: bool = False
    length_normalisation: float = 0.0
    subtracted_end: bool | None = None
    background: Tensor | None = None

    def __post_init__(self) -> None:
        if hasattr(self.model, "durations") or hasattr(self.model, "emit"):
            raise BadInputError("exact ranking is for RNN-T and attention models; searches of TDT and CTC are exact")
        if self.best < 1 or self.band < 0:
            raise BadInputError(f"best must be at least 1 and band at least 0, got {self.best} and {self.band}")

    def __call__(self, lists: Sequence[NBest], encoded: State) -> list[NBest]:
        """The same lists in their new order; `encoded` is what `model.encode` gave."""
        chosen = [nbest[: self.best] for nbest in lists]
        hypotheses = [h for nbest in chosen for h in nbest]
        if hasattr(self.model, "join"):
            f, lengths = encoded
            scores = {"asr": transducer_scores(self.model, f, lengths, chosen, self.band)}  # type: ignore[arg-type]
        else:
            scores = {"asr": attention_scores(self.model, encoded, chosen)}
        ends = self.scores_end, self.scores_end if self.subtracted_end is None else self.subtracted_end
        for name, scorer, end in zip(("lm", "subtracted"), self._scorers(), ends, strict=True):
            if scorer is not None:
                scores[name] = sequence_scores(scorer, [h.tokens for h in hypotheses], finish=end).tolist()
        again = iter(
            self._ranked(replace(h, scores=replace(h.scores, **{name: found[k] for name, found in scores.items()})))
            for k, h in enumerate(hypotheses)
        )
        first = [sorted((next(again) for _ in nbest), key=lambda h: -h.score) for nbest in chosen]
        return [few + nbest[self.best :] for few, nbest in zip(first, lists, strict=True)]

    def _scorers(self) -> tuple[TokenScorer | None, TokenScorer | None]:
        """The LM and the subtracted scorer, as the weights smooth it; None where the search's scores are kept."""
        lm = self.lm if self.weights.lm else None
        if self.subtracted is None or not self.weights.subtracted:
            return lm, None
        return lm, smoothed(self.subtracted, self.weights.background, self.background)

    def _ranked(self, h: Hypothesis) -> Hypothesis:
        return replace(h, score=h.scores.fused(self.weights) / (len(h.tokens) + 1) ** self.length_normalisation)


@torch.no_grad()
def attention_scores(model: AttentionDecoder, memory: State, lists: Sequence[NBest]) -> list[float]:
    """log P(y, <eos> | x) of each hypothesis, the first utterance's first."""
    K, device = max(map(len, lists), default=0), model.device
    if not K:
        return []
    longest = max(len(h.tokens) for nbest in lists for h in nbest)
    labels = torch.zeros(len(lists) * K, longest + 1, dtype=torch.long)  # rows without a hypothesis are never read
    ends = torch.zeros(len(lists) * K, dtype=torch.long)
    for row, h in _places(lists, K):
        labels[row, : len(h.tokens)] = torch.tensor(h.tokens, dtype=torch.long)
        labels[row, len(h.tokens)] = int(model.tokens.eos or 0)
        ends[row] = len(h.tokens)
    labels, ends = labels.to(device), ends.to(device)
    repeated = torch.arange(len(lists), device=device).repeat_interleave(K)
    rows, state = model.start(memory)
    rows, state = rows[repeated], select(state, repeated)
    total = torch.zeros(len(labels), dtype=torch.float64, device=device)
    for u in range(longest + 1):
        total += rows.gather(1, labels[:, u : u + 1])[:, 0].double().masked_fill(ends < u, 0.0)
        if u < longest:
            rows, state = model.step(labels[:, u], state, memory)
    found = total.tolist()
    return [found[row] for row, _ in _places(lists, K)]


@torch.no_grad()
def transducer_scores(model: Transducer, f: Tensor, lengths: Tensor, lists: Sequence[NBest], band: int) -> list[float]:
    """log P(y|x) of each hypothesis over the alignments in its band, the first utterance's first.

    Args:
        model: The transducer.
        f: Acoustic terms (B, T, J).
        lengths: Their lengths (B,).
        lists: Hypotheses with the frames of their labels.
        band: Frames by which an alignment may differ from those.
    """
    if not any(lists):
        return []
    lattice = _Lattice(f, lengths, lists, band)
    lattice.compute(model)
    return lattice.total()


class _Lattice:
    """The nodes (t, prefix) that the hypotheses pass, each once.

    A prefix of u labels is needed at frame t if first_u ≤ t ≤ last_u:  first_u = τ_u − band, last_u = τ_{u+1} + band,
    where τ_u is the frame at which the search emitted the u-th label.
    """

    def __init__(self, f: Tensor, lengths: Tensor, lists: Sequence[NBest], band: int) -> None:
        self.f = f
        self.frames = [int(n) for n in lengths.tolist()]
        self.hypotheses = [(b, h) for b, nbest in enumerate(lists) for h in nbest]
        self.windows: dict[tuple[int, Prefix], tuple[int, int]] = {}
        self.children: dict[tuple[int, Prefix], list[int]] = {}
        for b, h in self.hypotheses:
            if h.times is None:
                raise BadInputError("a transducer's hypothesis has no frame times; rank the lists of our own search")
            last_frame = max(self.frames[b] - 1, 0)
            for u in range(len(h.tokens) + 1):
                first = max(0, h.times[u - 1] - band) if u else 0
                last = min(last_frame, h.times[u] + band) if u < len(h.tokens) else last_frame
                key = b, h.tokens[:u]
                known = self.windows.get(key, (first, last))
                self.windows[key] = min(first, known[0]), max(last, known[1])
                labels = self.children.setdefault(key, [])
                if u < len(h.tokens) and h.tokens[u] not in labels:
                    labels.append(h.tokens[u])
        self.starts: dict[tuple[int, Prefix], int] = {}  # where a prefix's frames stand among all nodes
        self.blank = self.labels = torch.empty(0)

    def compute(self, model: Transducer) -> None:
        """log P(blank) (n,) and log P(each child's label) (n, most children) of every node."""
        blank, device = int(model.tokens.blank or 0), self.f.device
        places, g = _language_terms(model, [prefix for _, prefix in self.windows])
        width = max(map(len, self.children.values()))
        utterances, times, rows, units = [], [], [], []
        count = 0
        for key, (first, last) in self.windows.items():
            self.starts[key] = count
            n = last - first + 1
            count += n
            utterances.append(torch.full((n,), key[0]))
            times.append(torch.arange(first, last + 1))
            rows.append(torch.full((n,), places[key[1]]))
            padded = self.children[key] + [blank] * (width - len(self.children[key]))
            units.append(torch.tensor([[blank, *padded]]).expand(n, -1))
        index = [torch.split(torch.cat(x).to(device), CHUNK) for x in (utterances, times, rows, units)]
        parts = []
        for b, t, row, wanted in zip(*index, strict=True):
            z = model.join(self.f[b, t], g[row])
            z = z.to(torch.promote_types(z.dtype, torch.float32))
            parts.append((z.gather(1, wanted) - z.logsumexp(1, keepdim=True)).double())
        found = torch.cat(parts).cpu()
        self.blank, self.labels = found[:, 0], found[:, 1:]

    def total(self) -> list[float]:
        """log P(y|x) of each hypothesis."""
        T, W = self.f.shape[1], 1 + max(len(h.tokens) for _, h in self.hypotheses)
        blank = torch.full((len(self.hypotheses), T, W), NEGATIVE, dtype=torch.float64)
        label = blank.clone()
        for i, (b, h) in enumerate(self.hypotheses):
            for u in range(len(h.tokens) + 1):
                key = b, h.tokens[:u]
                (first, last), start = self.windows[key], self.starts[key]
                nodes = slice(start, start + last - first + 1)
                blank[i, first : last + 1, u] = self.blank[nodes]
                if u < len(h.tokens):
                    label[i, first : last + 1, u] = self.labels[nodes, self.children[key].index(h.tokens[u])]
        frames = torch.tensor([self.frames[b] for b, _ in self.hypotheses], dtype=torch.long)
        lengths = torch.tensor([len(h.tokens) for _, h in self.hypotheses], dtype=torch.long)
        return forward_scores(blank, label, frames, lengths)[0].tolist()


def _language_terms(model: Transducer, prefixes: Sequence[Prefix]) -> tuple[dict[Prefix, int], Tensor]:
    """g (n, J) of each distinct prefix, and which row is whose; the prefixes of a prefix are among them."""
    g, state = model.start(1)
    places: dict[Prefix, int] = {(): 0}
    level, terms = dict(places), [g]
    longer = sorted(set(prefixes) - {()}, key=lambda p: (len(p), p))
    while longer:
        size = len(longer[0])
        now = [p for p in longer if len(p) == size]
        longer = longer[len(now) :]
        parents = torch.tensor([level[p[:-1]] for p in now], device=model.device)
        labels = torch.tensor([p[-1] for p in now], device=model.device)
        g, state = model.predict(labels, select(state, parents))
        level = {p: k for k, p in enumerate(now)}
        begin = len(places)
        places.update({p: begin + k for p, k in level.items()})
        terms.append(g)
    return places, torch.cat(terms)


def _places(lists: Sequence[NBest], K: int) -> list[tuple[int, Hypothesis]]:
    """Each hypothesis and its row among K for every utterance."""
    return [(b * K + k, h) for b, nbest in enumerate(lists) for k, h in enumerate(nbest)]
