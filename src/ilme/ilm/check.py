"""The self-check of an internal LM: two different utterances must give identical scores."""

from __future__ import annotations

from typing import Any

import torch

from ilme.errors import IlmeError
from ilme.protocols import TokenScorer

__all__ = ["AudioDependenceError", "check_audio_independent"]


class AudioDependenceError(IlmeError):
    """An internal LM whose scores changed with the audio that its host had heard."""


@torch.no_grad()
def check_audio_independent(scorer: TokenScorer, host: Any, features: int | None = None, labels: int = 3) -> None:
    """Scores a few labels, lets the host encode and decode noise, and scores them again.

    Whatever the host keeps from an utterance (a cached context, a bias that went along) shows as a difference.
    """
    if features is None:
        features = host.config.encoder.features
    sequence = [i for i in range(len(scorer.tokens)) if i not in scorer.tokens.special][:labels]
    before = _rows(scorer, sequence)
    generator = torch.Generator().manual_seed(0)
    dtype = next(host.parameters()).dtype
    for scale in (1.0, 5.0):
        noise = (torch.randn(1, 12, features, generator=generator) * scale).to(host.device, dtype)
        host.encode(noise, torch.tensor([12], device=host.device))
        after = _rows(scorer, sequence)
        if not torch.equal(before, after):
            worst = (before - after).abs().nan_to_num(0).max().item()
            raise AudioDependenceError(
                f"{type(scorer).__name__} gave scores that differ by {worst:.3g} after its host heard other audio; "
                "an internal LM may depend on the labels alone"
            )


def _rows(scorer: TokenScorer, sequence: list[int]) -> torch.Tensor:
    row, state = scorer.start(1)
    rows = [row]
    for label in sequence:
        row, state = scorer.score(torch.tensor([label], device=scorer.device), state)
        rows.append(row)
    return torch.cat(rows)
