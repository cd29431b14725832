"""The self-check of an internal LM: whatever its host has heard, its scores stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.errors import IlmeError
from ilme.protocols import SharedStep, TokenScorer
from ilme.runtime.state import State

__all__ = ["AudioDependenceError", "check_audio_independent", "rounding"]

# Nats by which a step that is shared with the host may differ: another order of the same sums. TF32 keeps ten bits of
# each factor; a decoder of the paper's size was off by 2e-3.
SHARED, SHARED_IN_TF32 = 1e-3, 2e-2


class AudioDependenceError(IlmeError):
    """An internal LM whose scores changed with the audio that its host had heard."""


@torch.no_grad()
def check_audio_independent(scorer: TokenScorer, host: Any, labels: int = 3) -> None:
    """Scores a few labels, lets the host encode and decode noise, and scores them again, alone and beside the host.

    Whatever the host keeps from an utterance (a cached context, a bias that went along) shows as a difference. A host
    that does not say what its features look like hears nothing, and nothing is checked.
    """
    sequence = [i for i in range(len(scorer.tokens)) if i not in scorer.tokens.special][:labels]
    before = _rows(scorer, sequence)
    for loudness in (1.0, 5.0):
        heard = _noise(host, loudness)
        if heard is None:
            return
        memory = host.encode(*heard)
        _compare(scorer, before, _rows(scorer, sequence), 0.0)
        if isinstance(scorer, SharedStep) and scorer.host is host:
            _compare(scorer, before, _shared_rows(scorer, host, memory, sequence), rounding(host))


def rounding(host: Any) -> float:
    """By how much the shared step may differ on this device."""
    tf32 = host.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return SHARED_IN_TF32 if tf32 else SHARED


def _compare(scorer: TokenScorer, before: Tensor, after: Tensor, tolerance: float) -> None:
    worst = float((before - after).abs().nan_to_num(0).max())
    if worst > tolerance or not torch.equal(before.isfinite(), after.isfinite()):
        raise AudioDependenceError(
            f"{type(scorer).__name__} gave scores that differ by {worst:.3g} after its host heard other audio; "
            "an internal LM may depend on the labels alone"
        )


def _noise(host: Any, loudness: float) -> tuple[Tensor, Tensor] | None:
    """Features of noise and their length, as the host's `encode` takes them; None if the host does not say."""
    encoder = getattr(getattr(host, "config", None), "encoder", None)
    if encoder is not None:  # a network of ours
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(1, 12, encoder.features, generator=generator) * loudness
        dtype = next(host.parameters()).dtype
        return noise.to(host.device, dtype), torch.tensor([12], device=host.device)
    if hasattr(host, "features") and hasattr(host, "rate"):
        wave = np.random.default_rng(0).normal(0, 0.02 * loudness, host.rate).astype(np.float32)
        features, lengths = host.features([wave])
        return features.to(host.device), lengths.to(host.device)
    return None


def _rows(scorer: TokenScorer, sequence: list[int]) -> Tensor:
    row, state = scorer.start(1)
    rows = [row]
    for label in sequence:
        row, state = scorer.score(torch.tensor([label], device=scorer.device), state)
        rows.append(row)
    return torch.cat(rows)


def _shared_rows(scorer: Any, host: Any, memory: State, sequence: list[int]) -> Tensor:
    """The same rows, each step taken together with the host's."""
    _, own = host.start(memory)
    row, state = scorer.start(1)
    rows = [row]
    for label in sequence:
        (_, own), (row, state) = scorer.step_both(torch.tensor([label], device=scorer.device), own, state, memory)
        rows.append(row)
    return torch.cat(rows)
