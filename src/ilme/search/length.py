"""How long an utterance's transcript can be: at most as long as its audio allows, and about as long as the model heard.

Both guards hold for every model and every fusion method alike. They keep an LM, or an internal LM that is subtracted,
from dropping speech or inventing it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ilme.search.hypothesis import NBest

__all__ = ["LABELS_PER_SECOND", "SPARE_LABELS", "alike_in_length", "label_limits"]

LABELS_PER_SECOND = 12.0  # no speech has more; what goes on longer has been invented
SPARE_LABELS = 12  # short utterances need a few more than their length suggests
SHORTEST, LONGEST, FREE_LABELS = 0.6, 2.0, 8


def label_limits(seconds: Sequence[float], labels_per_second: float, most: int) -> list[int]:
    """Most labels of each utterance: min(most, ⌊seconds · labels_per_second⌋ + SPARE_LABELS)."""
    if math.isinf(labels_per_second):
        return [most] * len(seconds)
    return [min(most, int(s * labels_per_second) + SPARE_LABELS) for s in seconds]


def alike_in_length(nbest: NBest, exponent: float) -> NBest:
    """Leaves out hypotheses that drop or invent whole stretches of speech.

    The measure is the hypothesis that the model itself, without any LM, likes best: what stays has between 0.6 and 2
    times its labels, give or take eight. A search without LM is not changed: its best hypothesis is that measure.

    Args:
        nbest: The list.
        exponent: α, if hypotheses are ranked by score / (|y| + 1)^α.
    """
    if not nbest:
        return nbest
    own = max(nbest, key=lambda h: h.scores.asr / (len(h.tokens) + 1) ** exponent)
    low, high = SHORTEST * len(own.tokens) - FREE_LABELS, LONGEST * len(own.tokens) + FREE_LABELS
    return [h for h in nbest if low <= len(h.tokens) <= high]
