"""Several language models as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.protocols import TokenScorer
from ilme.runtime.state import State
from ilme.tokens import check_same_vocabulary

__all__ = ["MixtureScorer"]


class MixtureScorer:
    """A weighted sum of scorers, as a TokenScorer. The state is the tuple of theirs.

    log-linear:  row = Σ_i w_i · log P_i(· | h)        a product of experts; it does not sum to 1
    linear:      row = log Σ_i w_i · P_i(· | h)        the classical interpolation, Σ_i w_i = 1

    A scorer of weight 0 is dropped and never called. The end of sentence is mixed from what each scorer's
    `finish` says.
    """

    def __init__(
        self,
        scorers: Sequence[TokenScorer],
        weights: Sequence[float],
        kind: Literal["log-linear", "linear"] = "log-linear",
    ) -> None:
        if not scorers or len(scorers) != len(weights):
            raise BadInputError(f"a mixture has one weight for each scorer, got {len(scorers)} and {len(weights)}")
        if not all(math.isfinite(w) and w >= 0 for w in weights):
            raise BadInputError(f"mixture weights must be finite and not negative, got {list(weights)}")
        if kind not in ("log-linear", "linear"):
            raise BadInputError(f"a mixture is 'log-linear' or 'linear', got {kind!r}")
        if kind == "linear" and abs(sum(weights) - 1) > 1e-6:
            raise BadInputError(f"the weights of a linear mixture must sum to 1, got {sum(weights)}")
        if kind == "linear" and any(getattr(scorer, "pays_at_end", False) for scorer in scorers):
            raise BadInputError(
                "an LM of another tokenizer gives no probabilities of labels; it cannot be mixed linearly"
            )
        if not any(weights):
            raise BadInputError("every weight of the mixture is 0; use NullScorer for no language model")
        used = [(s, float(w)) for s, w in zip(scorers, weights, strict=True) if w > 0]
        self.scorers = tuple(s for s, _ in used)
        self.weights = tuple(w for _, w in used)
        self.kind = kind
        self.tokens = self.scorers[0].tokens
        self.device = self.scorers[0].device
        for i, other in enumerate(self.scorers[1:], 2):
            check_same_vocabulary(self.tokens, other.tokens, "first scorer", f"scorer {i}")
            if other.device != self.device:
                raise BadInputError(f"the scorers of a mixture are on {self.device} and on {other.device}; move one")
            if other.tokens.eos != self.tokens.eos:
                raise BadInputError(
                    f"the end of sentence is id {self.tokens.eos} in the first scorer and {other.tokens.eos} "
                    f"in scorer {i}; a mixture needs one"
                )

    def start(self, n: int) -> tuple[Tensor, State]:
        results = [scorer.start(n) for scorer in self.scorers]
        return self._mix([rows for rows, _ in results]), tuple(state for _, state in results)

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        results = [scorer.score(labels, own) for scorer, own in zip(self.scorers, state, strict=True)]
        return self._mix([rows for rows, _ in results]), tuple(new for _, new in results)

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows)) if self.tokens.eos is None else rows[:, self.tokens.eos]

    def _mix(self, rows: list[Tensor]) -> Tensor:
        mixed = self._combine(rows)
        if self.tokens.eos is not None:
            ends = [scorer.finish(own) for scorer, own in zip(self.scorers, rows, strict=True)]
            mixed[:, self.tokens.eos] = self._combine(ends)
        return mixed

    def _combine(self, values: list[Tensor]) -> Tensor:
        if self.kind == "linear":
            return torch.logsumexp(
                torch.stack([value + math.log(w) for value, w in zip(values, self.weights, strict=True)]), 0
            )
        total = self.weights[0] * values[0]
        for value, w in zip(values[1:], self.weights[1:], strict=True):
            total = total + w * value
        return total
