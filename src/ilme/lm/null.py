"""No language model: a scorer that adds nothing, so that no search asks whether there is one."""

from __future__ import annotations

import torch
from torch import Tensor

from ilme.nest import State
from ilme.tokens import Tokens

__all__ = ["NullScorer"]


class NullScorer:
    """Scores every label 0. Its rows are (n, 1): one number that stands for every label."""

    capturable = True

    def __init__(self, tokens: Tokens, device: torch.device | str = "cpu") -> None:
        self.tokens = tokens
        self.device = torch.device(device)

    def start(self, n: int) -> tuple[Tensor, State]:
        return torch.zeros(n, 1, device=self.device), None

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.start(len(labels))

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows))
