"""CTC's probability of a prefix: what a label-synchronous search, or a look at single labels, needs of a CTC layer.

    ψ(y) = Σ over alignments of P that begin with y and go on in any way,    ψ(empty) = 1
    ψ(y v) = Σ_t φ_{t−1}(y, v) P_t(v),    φ_t(y, v) = r^b_t(y) + (v = y_U ? 0 : r^l_t(y))
    r^l_t(y v) = (r^l_{t−1}(y v) + φ_{t−1}(y, v)) P_t(v),    r^b_t(y) = (r^b_{t−1}(y) + r^l_{t−1}(y)) P_t(blank)

r^l and r^b are the sums over alignments of the first t frames that say y and end in its last label, or in blank. Row by
row the scores are log ψ(y v) − log ψ(y), and log P(y | x) − log ψ(y) in the blank's place, for the end: those of a
sequence and of its end add up to log P(y | x)   (Watanabe et al. 2017). Everything is in float64.

Shapes: B utterances, n label sequences (n / B of each utterance, standing together), T frames, V units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.runtime.state import State

__all__ = ["CTCPrefixes"]

LEAST = -1e5  # stands for log 0: finite, so that a difference of two of them is no NaN


class CTCPrefixes:
    """The prefix scores of B utterances.

    Args:
        rows: log P (B, T, V) of each frame.
        lengths: Frames of each utterance (B,).
        blank: The blank's id.
    """

    def __init__(self, rows: Tensor, lengths: Tensor, blank: int) -> None:
        inside = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        self.blank = blank
        # after its last frame an utterance says nothing but blank, at no cost
        silent = torch.full_like(rows[:1, :1], LEAST)
        silent[..., blank] = 0.0
        self.rows = torch.where(inside[:, :, None], rows, silent).double().clamp(min=LEAST)
        self.chances = self.rows.exp()

    @property
    def tables(self) -> State:
        """What does not depend on labels, utterance first, to be kept from one step to the next."""
        return {"rows": self.rows, "chances": self.chances}

    @classmethod
    def of(cls, tables: State, blank: int) -> CTCPrefixes:
        """The scores of what `tables` gave, or of some of its utterances."""
        made = cls.__new__(cls)
        made.blank, made.rows, made.chances = blank, tables["rows"], tables["chances"]
        return made

    def start(self) -> tuple[Tensor, State]:
        """Rows (B, V) of one empty sequence per utterance, and the states."""
        blank = self.rows[:, :, self.blank].cumsum(1)
        before = torch.cat([torch.zeros_like(blank[:, :1]), blank], 1)  # r^b_0 … r^b_T
        state = {
            "blank": before,
            "label": torch.full_like(before, LEAST),
            "last": torch.full((len(before),), self.blank, device=before.device),
            "total": torch.zeros(len(before), dtype=torch.float64, device=before.device),
        }
        return self._rows_of(state), state

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Extends each sequence by its label (n,): rows (n, V), and the new states."""
        said = self._said(labels)
        before = self._before(labels, state)
        label = _carried(before[:, :-1] + said, said)
        blanks = self.rows[:, :, self.blank].repeat_interleave(len(labels) // len(self.rows), 0)
        blank = _carried(torch.cat([torch.full_like(label[:, :1], LEAST), label[:, :-1]], 1) + blanks, blanks)
        nothing = torch.full_like(label[:, :1], LEAST)
        new = {
            "blank": torch.cat([nothing, blank], 1),
            "label": torch.cat([nothing, label], 1),
            "last": labels,
            "total": (before[:, :-1] + said).logsumexp(1).clamp(min=LEAST),
        }
        return self._rows_of(new), new

    def _said(self, labels: Tensor) -> Tensor:
        """log P_t(v) (n, T) of each sequence's label (n,)."""
        B, T, _ = self.rows.shape
        picked = self.rows.gather(2, labels.view(B, 1, -1).expand(B, T, -1))
        return picked.transpose(1, 2).reshape(len(labels), T)

    def _before(self, labels: Tensor, state: State) -> Tensor:
        """log φ_0 … φ_T (n, T + 1) of each sequence and its label (n,)."""
        both = torch.logaddexp(state["blank"], state["label"])
        return torch.where((labels == state["last"])[:, None], state["blank"], both)

    def _rows_of(self, state: State) -> Tensor:
        """log ψ(y v) − log ψ(y) (n, V), and of the end in the blank's place."""
        n, total, B = len(state["last"]), state["total"][:, None], len(self.rows)
        both = torch.logaddexp(state["blank"], state["label"])
        # log Σ_t φ_{t−1} P_t(v) as one product of matrices; in float64 nothing of interest is lost to 0
        shift = both[:, :-1].amax(1)[:, None]
        arrivals = (both[:, :-1] - shift).exp().view(B, n // B, -1)
        psi = (arrivals @ self.chances).view(n, -1).log() + shift
        again = (state["blank"][:, :-1] + self._said(state["last"])).logsumexp(1)
        psi = psi.scatter(1, state["last"][:, None], again[:, None])
        psi[:, self.blank] = both[:, -1]
        scores: Tensor = psi.clamp(min=LEAST) - total
        return scores


def _carried(arrivals: Tensor, stay: Tensor) -> Tensor:
    """r_t = log Σ_{s ≤ t} exp(arrival_s + Σ_{s < q ≤ t} stay_q)   (n, T)."""
    passed = stay.cumsum(1)
    return torch.logcumsumexp(arrivals - passed, 1) + passed
