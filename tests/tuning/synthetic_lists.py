"""A decoder over made-up hypotheses whose best weights are known."""

from __future__ import annotations

import numpy as np

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
