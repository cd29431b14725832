"""Internal LMs: how an E2E model becomes a TokenScorer with its acoustics removed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ilme.protocols import TokenScorer

__all__ = ["internal_lm"]


def internal_lm(model: Any, acoustics: Tensor | None = None, scale: float = 1.0) -> TokenScorer:
    """The internal LM of a model, checked not to depend on audio.

    Args:
        model: A transducer, or an attention decoder of ours.
        acoustics: None removes the acoustic term, as in the paper; a vector takes its place: a mean (see
            `ilme.ilm.average`), or one that was learned from text (see `ilme.ilm.learned_vector`).
        scale: A factor of the logits; 1 in the paper.
    """
    from ilme.ilm.attention import AttentionInternalLM
    from ilme.ilm.check import check_audio_independent
    from ilme.ilm.transducer import TransducerInternalLM

    kind = TransducerInternalLM if hasattr(model, "join") else AttentionInternalLM
    scorer = kind(model, acoustics, scale)
    check_audio_independent(scorer, model)
    return scorer
