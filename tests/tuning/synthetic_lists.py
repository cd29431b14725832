"""Decoders over made-up hypotheses whose best weights are known."""

from __future__ import annotations

import numpy as np

from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.search.hypothesis import Hypothesis, NBest, Scores

TRUTH = FusionWeights(lm=0.4, subtracted=0.25)
WORDS = [f"w{k}" for k in range(8)]


class SyntheticDecoder:
    """Knows every hypothesis of every utterance; a decode returns the `beam` best under the given weights.

    log P_E2E = quality − 0.4 · lm + 0.25 · subtracted + noise: with the true weights the fused score is the
    quality, which falls with every error, so that only noise makes errors.
    """

    def __init__(self, seed: int = 0, utterances: int = 60, hypotheses: int = 40, noise: float = 0.3) -> None:
        g = np.random.default_rng(seed)
        self.references = {f"u{u}": " ".join(WORDS) for u in range(utterances)}
        self.speakers = {f"u{u}": f"s{u // 6}" for u in range(utterances)}
        self.calls: list[FusionWeights] = []
        self.everything: dict[str, NBest] = {}
        for i in self.references:
            rows = []
            for k in range(hypotheses):
                errors = 0 if k == 0 else int(g.integers(1, 6))
                words = WORDS[: len(WORDS) - errors // 2] + ["oops"] * (errors - errors // 2)
                lm, sub = g.normal(-20, 4), g.normal(-22, 4)
                asr = -3.0 * errors - TRUTH.lm * lm + TRUTH.subtracted * sub + g.normal(0, noise)
                text = " ".join(words)
                rows.append(Hypothesis((k,), asr, Scores(asr, lm, sub, len(words)), text=text))
            self.everything[i] = rows

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        self.calls.append(weights)
        return {i: sorted(rows, key=lambda h: -h.scores.fused(weights))[:beam] for i, rows in self.everything.items()}


class OverreachingDecoder:
    """A search that cuts its transcripts once λ_T is large, as attention decoders with an LM do; best near BEST.

    In a share of the utterances each kind of hypothesis beats the one that wins without fusion from a drawn λ_T on:

        kind     errors    wins from      is found by a search
        right    2 fewer   0 to 0.25      always
        other    2 more    0.13 to 0.25   as soon as it wins
        cut      5 more    0.08 to 0.4    at a λ_T larger by 0.12 to 0.22: on the way there its beginning is pruned

    Lists without fusion hold the right ones alone, and promise gains up to 0.25. Once found, the cut ones win on merged
    lists from 0.08 on, where no search would find them.
    """

    BEST = 0.13

    def __init__(self, seed: int, utterances: int = 300) -> None:
        g = np.random.default_rng(seed)
        self.references = {f"u{u}": " ".join(WORDS) for u in range(utterances)}
        self.rows: dict[str, list[tuple[float, Hypothesis]]] = {}  # the λ_T from which on it is found, and it
        for i in self.references:
            at_first = 2 if g.random() < 0.2 else 0
            self.rows[i] = [(0.0, _hypothesis(0, at_first, len(WORDS), asr=-4.0, lm=-25.0))]
            if at_first:
                self._add(i, errors=0, words=len(WORDS), wins=g.uniform(0, 0.25), later=-1.0)
            if g.random() < 0.2:
                self._add(i, errors=2, words=len(WORDS), wins=g.uniform(self.BEST, 0.25), later=0.0)
            if g.random() < 0.3:
                self._add(i, errors=5, words=3, wins=g.uniform(0.08, 0.4), later=g.uniform(0.12, 0.22))

    def _add(self, i: str, *, errors: int, words: int, wins: float, later: float) -> None:
        """A hypothesis that beats the first from λ_T = `wins` on and is found from `wins` + `later` on."""
        first, gain = self.rows[i][0][1].scores, 10.0
        row = _hypothesis(len(self.rows[i]), errors, words, asr=first.asr - wins * gain, lm=first.lm + gain)
        self.rows[i].append((wins + later, row))

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        found = {i: [h for least, h in rows if weights.lm >= least] for i, rows in self.rows.items()}
        return {i: sorted(rows, key=lambda h: -h.scores.fused(weights))[:beam] for i, rows in found.items()}

    def errors(self, lm: float) -> int:
        """Of a search with this λ_T."""
        decoded = self.decode(FusionWeights(lm=lm), 1)
        return measure(self.references, {i: nbest[0].text for i, nbest in decoded.items()}).total.errors


def _hypothesis(k: int, errors: int, words: int, *, asr: float, lm: float) -> Hypothesis:
    """`words` words with `errors` errors: words that are missing, then wrong ones."""
    wrong = errors - (len(WORDS) - words)
    text = " ".join(WORDS[: words - wrong] + ["oops"] * wrong)
    return Hypothesis((k,), asr, Scores(asr, lm, 0.0, words), text=text)
