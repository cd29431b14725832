"""κ, the weight of listed phrases, on a dev set: after the other weights, which a list of names is not to change.

    κ = argmin over the ladder of errors on dev, among those that leave the other words as they are

A list is about words that dev may not hold, so fewer errors are not all that counts: no κ is allowed that makes over
1 % more errors on words that are not listed, and where dev holds few of the listed words the safe κ is kept if it is
allowed, or the largest below it that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ilme.evaluation.listed import listed_errors
from ilme.evaluation.metrics import ErrorCounts, Measurement, NormaliserName, measure
from ilme.fusion import FusionWeights
from ilme.lm.phrase_list import Phrase
from ilme.search.hypothesis import NBest

__all__ = ["BoostStep", "allowed", "choose_boost", "tune_boost"]

LADDER = (0.5, 1.0, 1.5)  # times the safe κ
HARM = 0.01  # relative: most that the other words may lose
FEW = 20  # listed words in dev from which their errors can choose

Decode = Callable[[FusionWeights], Mapping[str, NBest]]


@dataclass(frozen=True)
class BoostStep:
    """One decode of dev.

    Attributes:
        boost: κ.
        listed: Errors on listed words.
        others: Errors on all others.
        measured: All of them; None where the texts are not needed.
    """

    boost: float
    listed: ErrorCounts
    others: ErrorCounts
    measured: Measurement | None = None

    @property
    def errors(self) -> int:
        return self.listed.errors + self.others.errors


def allowed(step: BoostStep, none: BoostStep) -> bool:
    """Whether the words that are not listed are left as they are; one error more is chance."""
    return step.others.errors <= max((1 + HARM) * none.others.errors, none.others.errors + 1)


def choose_boost(steps: Sequence[BoostStep], safe: float) -> BoostStep:
    """The best of the steps, the first of which has no boost."""
    good = [step for step in steps if allowed(step, steps[0])]
    if steps[0].listed.words < FEW:
        return max((step for step in good if step.boost <= safe), key=lambda step: step.boost)
    return min(good, key=lambda step: (step.errors, step.boost))


def tune_boost(
    decode: Decode,
    references: Mapping[str, str],
    phrases: Sequence[Phrase],
    weights: FusionWeights,
    safe: float,
    normaliser: NormaliserName,
    speakers: Mapping[str, str] | None = None,
) -> tuple[BoostStep, list[BoostStep]]:
    """The decode with the best κ, and every one.

    Args:
        decode: Weights to the n-best lists of dev.
        references: The transcripts.
        phrases: What is listed.
        weights: The other weights, which stay as they are.
        safe: κ where nothing was measured.
        normaliser: Normaliser of the texts.
        speakers: Of the utterances, where they are known.
    """
    steps = []
    for boost in (0.0, *(round(safe * part, 4) for part in LADDER)):
        lists = decode(replace(weights, phrases=boost))
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        measured = measure(references, texts, speakers=speakers, normaliser_name=normaliser)
        steps.append(BoostStep(boost, *listed_errors(measured, phrases), measured))
    return choose_boost(steps, safe), steps
