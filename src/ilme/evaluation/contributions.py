"""Why a hypothesis won: the share of each label in each component score, and scores of sequences by force.

For an attention decoder a label's share is log P(y_u | x, y_{<u}). For a transducer it is the prefix probability

    P(y_{1…u} … | x) = Σ_t α(t, u−1) · P(y_u | t, u−1),     share of y_u = log of its ratio to the prefix before it

and the share of the end is what is left of log P(y|x). Both sum over every alignment, so the shares add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ilme.fusion import FusionWeights
from ilme.protocols import TokenScorer
from ilme.recogniser.recogniser import Encoded, Recogniser
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State
from ilme.search.ctc_prefix import CTCPrefixes
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.joint import JointDecoder

__all__ = ["LabelShare", "explain", "forced", "label_shares"]


@dataclass(frozen=True)
class LabelShare:
    """One label of a hypothesis, or its end.

    Attributes:
        piece: The label as text; empty for the end.
        asr: Its share of log P_E2E(y|x).
        lm: log P_T(y_u | y_{<u}) of the external LM; 0 without one.
        subtracted: log P_S(y_u | y_{<u}) of the subtracted LM; 0 without one.
        phrases: The bonus that it adds for listed phrases, or gives back; 0 without any.
    """

    piece: str
    asr: float
    lm: float
    subtracted: float
    phrases: float = 0.0


@torch.no_grad()
def label_shares(
    recogniser: Recogniser, encoded: Encoded, tokens: Sequence[int], weights: FusionWeights | None = None
) -> list[LabelShare]:
    """The shares of U labels and of the end, for one utterance (encoded with B = 1).

    What is subtracted is smoothed as the weights say: the recogniser's own if none are given.
    """
    ids, memory = list(tokens), recogniser.memory(encoded)
    shares = _attention_shares
    if recogniser.frame_synchronous:
        shares = _ctc_shares if recogniser.is_ctc else _transducer_shares
    if hasattr(recogniser.model, "durations"):
        shares = _tdt_shares
    asr = shares(recogniser, memory, ids)
    scorers = {
        "lm": recogniser.lm,
        "subtracted": recogniser.smoothed(weights or recogniser.weights),
        "phrases": recogniser.phrases,
    }
    lm, subtracted, phrases = (
        _scorer_shares(s, ids, recogniser.ends[name]) if s is not None else [0.0] * (len(ids) + 1)
        for name, s in scorers.items()
    )
    names = [*(recogniser.model.tokens.pieces[i] for i in ids), ""]
    return [LabelShare(*row) for row in zip(names, asr, lm, subtracted, phrases, strict=True)]


def _attention_shares(recogniser: Recogniser, memory: State, ids: list[int]) -> list[float]:
    model, weight = recogniser.model, getattr(recogniser.options, "ctc_weight", 0.0)
    if weight:
        model = JointDecoder(model, weight)
        memory = model.prepared(memory)
    row, state = model.start(memory)
    shares = []
    for label in ids:
        shares.append(float(row[0, label]))
        row, state = model.step(torch.tensor([label], device=row.device), state, memory)
    return [*shares, float(row[0, recogniser.model.tokens.eos])]


def _ctc_shares(recogniser: Recogniser, memory: State, ids: list[int]) -> list[float]:
    """log ψ(y_1 … y_u) − log ψ(y_1 … y_{u−1}), and of the end: see `ilme.search.ctc_prefix`."""
    h, lengths = memory
    blank = int(recogniser.model.tokens.blank)
    scorer = CTCPrefixes(log_softmax(recogniser.model.emit(h[:1])), lengths[:1], blank)
    row, state = scorer.start()
    shares = []
    for label in ids:
        shares.append(float(row[0, label]))
        row, state = scorer.step(torch.tensor([label], device=row.device), state)
    return [*shares, float(row[0, blank])]


def _transducer_shares(recogniser: Recogniser, memory: State, ids: list[int]) -> list[float]:
    """α(t, u) = logadd(α(t−1, u) + log P(blank | t−1, u), α(t, u−1) + log P(y_u | t, u−1)), one u at a time."""
    model = recogniser.model
    f, lengths = memory
    frames = f[0, : int(lengths[0])]
    g, state = model.start(1)
    shares: list[float] = []
    before = 0.0
    arrivals = torch.full((len(frames),), -torch.inf, dtype=torch.float64)
    arrivals[0] = 0.0
    for label in [*ids, None]:
        rows = log_softmax(model.join(frames, g.expand(len(frames), -1))).double().cpu()
        alpha = _wait(arrivals, rows[:, model.tokens.blank])
        if label is None:
            shares.append(float(alpha[-1] + rows[-1, model.tokens.blank]) - before)
            break
        arrivals = alpha + rows[:, label]
        reached = float(arrivals.logsumexp(0))
        shares.append(reached - before)
        before = reached
        g, state = model.predict(torch.tensor([label], device=g.device), state)
    return shares


def _tdt_shares(recogniser: Recogniser, memory: State, ids: list[int]) -> list[float]:
    """α(t, u) = logadd(arrival(t, u), log Σ_d α(t−d, u) P(blank) P(d)); labels arrive likewise, and T is the end."""
    model = recogniser.model
    f, lengths = memory
    frames = f[0, : int(lengths[0])]
    T, durations = len(frames), model.durations
    g, state = model.start(1)
    shares: list[float] = []
    before = 0.0
    arrivals = torch.full((T + 1,), -torch.inf, dtype=torch.float64)
    arrivals[0] = 0.0
    for label in [*ids, None]:
        both = model.join_durations(frames, g.expand(T, -1))
        rows, waits = (log_softmax(x).double().cpu() for x in both)
        alpha, nexts = arrivals.clone(), torch.full_like(arrivals, -torch.inf)
        for t in range(T):
            for d, go_on in enumerate(durations):
                to = min(t + go_on, T)
                if go_on:
                    step = alpha[t] + rows[t, model.tokens.blank] + waits[t, d]
                    alpha[to] = torch.logaddexp(alpha[to], step)
                if label is not None:
                    nexts[to] = torch.logaddexp(nexts[to], alpha[t] + rows[t, label] + waits[t, d])
        if label is None:
            shares.append(float(alpha[T]) - before)
            break
        arrivals, reached = nexts, float(nexts.logsumexp(0))
        shares.append(reached - before)
        before = reached
        g, state = model.predict(torch.tensor([label], device=g.device), state)
    return shares


def _wait(arrivals: Tensor, blank: Tensor) -> Tensor:
    """α (T,): to be at frame t, having come at any frame up to t and taken blank since.

    α(t) = log Σ_{s ≤ t} exp(arrival(s) + Σ_{s ≤ r < t} blank(r))
    """
    passed = torch.cat([blank.new_zeros(1), blank.cumsum(0)[:-1]])
    return torch.logcumsumexp(arrivals - passed, 0) + passed


def _scorer_shares(scorer: TokenScorer, ids: list[int], finish: bool) -> list[float]:
    row, state = scorer.start(1)
    shares = []
    for label in ids:
        shares.append(float(row[0, label]))
        row, state = scorer.score(torch.tensor([label], device=row.device), state)
    return [*shares, float(scorer.finish(row)[0]) if finish else 0.0]


def forced(
    recogniser: Recogniser, encoded: Encoded, tokens: Sequence[int], weights: FusionWeights | None = None
) -> Hypothesis:
    """Any label sequence, such as the reference, with the scores the search would give it (all alignments)."""
    scores = _total(label_shares(recogniser, encoded, tokens, weights))
    return Hypothesis(tuple(tokens), scores.asr, scores, text=recogniser.tokenizer.decode(list(tokens)))


def explain(
    recogniser: Recogniser, encoded: Encoded, nbest: NBest, weights: FusionWeights, reference: str = ""
) -> dict[str, Any]:
    """The hypothesis that won, what would have won without subtraction and without any LM, and the reference.

    Returns {"weights", "choices": [{"labels": who chose it, "text", "score", "shares": [LabelShare as a dict]}]}.
    """
    candidates = [
        ("chosen", nbest[0]),
        ("without subtraction", _best(nbest, replace(weights, subtracted=0.0))),
        ("without LM", _best(nbest, FusionWeights(length=weights.length))),
    ]
    spoken = recogniser.tokenizer.encode(reference) if reference else []
    if spoken:
        candidates.append(("reference", forced(recogniser, encoded, spoken, weights)))
    labels: dict[tuple[int, ...], list[str]] = {}
    for name, h in candidates:
        labels.setdefault(h.tokens, []).append(name)
    choices = []
    for tokens, names in labels.items():
        shares = label_shares(recogniser, encoded, tokens, weights)
        choices.append(
            {
                "labels": names,
                "text": recogniser.tokenizer.decode(list(tokens)),
                "score": round(_total(shares).fused(weights), 4),
                "shares": [_rounded(s) for s in shares],
            }
        )
    return {"weights": asdict(weights), "choices": choices}


def _total(shares: Sequence[LabelShare]) -> Scores:
    """The scores of the sequence whose labels, and end, have these shares."""
    return Scores(
        asr=sum(s.asr for s in shares),
        lm=sum(s.lm for s in shares),
        subtracted=sum(s.subtracted for s in shares),
        length=float(len(shares) - 1),
        phrases=sum(s.phrases for s in shares),
    )


def _best(nbest: NBest, weights: FusionWeights) -> Hypothesis:
    return max(nbest, key=lambda h: h.scores.fused(weights))


def _rounded(share: LabelShare) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(share).items()}
