"""Weights where no dev speech says more: those of other domains."""

from __future__ import annotations

from typing import Any

from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm

__all__ = ["SAFE_DOMAINS", "is_measured", "safe_choice"]

SAFE_DOMAINS = "audiobooks, telephone calls and voice commands"


def safe_choice(host: Any) -> tuple[str, FusionWeights]:
    """The internal LM and the weights for a model without dev speech.

    The weights whose worst domain was best on n-best lists, with an internal LM that needs no speech: measured for
    Transformers in experiments/safe_weights.py, where no domain got worse in the search. A transducer, and the paper's
    AED, take theirs from the tunings of docs/results: about half of what dev chose, since too little costs less than
    too much.
    """
    name = internal_lm.default(host)
    if hasattr(host, "join") or hasattr(host, "emit"):
        return name, FusionWeights(lm=0.3, subtracted=0.1, length=0.6)
    if host.kind == "aed":
        return name, FusionWeights(lm=0.15, subtracted=0.075)
    return name, FusionWeights(lm=0.25, subtracted=0.125)


def is_measured(host: Any) -> bool:
    """Whether the weights of `safe_choice` were measured for such a model: for the Transformers."""
    return not (hasattr(host, "join") or hasattr(host, "emit") or host.kind == "aed")
