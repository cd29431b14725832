"""The weight of listed phrases on dev speech, for adaptation and for tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ilme.data.utterances import Utterance
from ilme.evaluation.metrics import NormaliserName
from ilme.fusion import FusionWeights
from ilme.lm.phrase_list import Phrase
from ilme.recogniser.options import safe_boost
from ilme.recogniser.recogniser import Recogniser
from ilme.search.hypothesis import NBest
from ilme.tuning.boost import FEW, BoostStep, tune_boost

__all__ = ["boost_on_dev"]

Decode = Callable[[FusionWeights], Mapping[str, NBest]]


def boost_on_dev(
    decode: Decode,
    recogniser: Recogniser,
    dev: Sequence[Utterance],
    phrases: Sequence[Phrase],
    weights: FusionWeights,
    normaliser: NormaliserName,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[BoostStep, dict[str, Any]]:
    """The decode with the best κ, and what a card says of it; a list that makes other words worse gets weight 0.

    Args:
        decode: Weights to the n-best lists of dev, of a recogniser that has the phrases.
        recogniser: That recogniser.
        dev: The utterances.
        phrases: What is listed.
        weights: The other weights.
        normaliser: Normaliser of the texts.
        say: Called with one line for each decode.
    """
    references, speakers = {u.id: u.text for u in dev}, {u.id: u.speaker for u in dev}
    safe = safe_boost(recogniser.model)
    best, steps = tune_boost(decode, references, phrases, weights, safe, normaliser, speakers)
    for step in steps:
        say(f"  κ {step.boost:.2f}: {_errors(step)}")
    words = steps[0].listed.words
    why = f"tuned on {words} listed words of dev" if words >= FEW else f"dev holds {words} listed words: not tuned"
    if not best.boost:
        why = "no weight left the other words of dev as they are, so the list is not used"
    say(f"phrases: {len(phrases)} listed, κ {best.boost:.2f} ({why})")
    tried = {f"κ {step.boost:g}": _errors(step) for step in steps}
    return best, {"listed": len(phrases), "boost": best.boost, "why": why, "dev": tried}


def _errors(step: BoostStep) -> str:
    return f"{step.listed.errors} errors on {step.listed.words} listed words, {step.others.errors} on others"
