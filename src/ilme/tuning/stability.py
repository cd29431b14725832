"""How far weights would move if another dev set had chosen them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ilme.evaluation.tuning_result import Stability
from ilme.tuning.error_surface import Array, CandidateLists, as_weights
from ilme.tuning.weight_search import WeightObjective, WeightSpace, search_weights

__all__ = ["stability"]


def stability(
    lists: CandidateLists,
    space: WeightSpace,
    chosen: Array,
    *,
    objective: WeightObjective,
    speakers: Mapping[str, str] | None = None,
    replicates: int = 50,
    seed: int = 0,
) -> Stability:
    """Where the weights would fall on other dev sets: the search repeated on resampled speakers.

    `optimism` estimates how much lower WER is on the dev set that chose the weights than on new utterances:
    mean over replicates of WER(all; weights of the replicate) − WER(replicate; weights of the replicate).
    """
    groups = [(speakers or {}).get(i) or i for i in lists.ids]
    names = {name: k for k, name in enumerate(dict.fromkeys(groups))}
    member = np.array([names[g] for g in groups])
    generator = np.random.default_rng(seed)
    vectors, gaps = [], []
    for _ in range(replicates):
        drawn = np.bincount(generator.integers(len(names), size=len(names)), minlength=len(names))
        copies = drawn[member].astype(float)
        words = float((lists.words * copies).sum())
        if words == 0:
            continue
        found = search_weights(lists, space, objective=objective, starts=[chosen], restarts=0, copies=copies)
        vectors.append(found.vector)
        everywhere = lists.error_at(found.vector) / lists.total_words
        gaps.append(100 * (everywhere - lists.error_at(found.vector, copies) / words))
    spread = np.array(vectors)
    return Stability(
        replicates=len(vectors),
        groups=len(names),
        mean=as_weights(spread.mean(axis=0)),
        deviation=as_weights(spread.std(axis=0, ddof=1) if len(spread) > 1 else np.zeros(3)),
        low=as_weights(np.quantile(spread, 0.025, axis=0)),
        high=as_weights(np.quantile(spread, 0.975, axis=0)),
        optimism=float(np.mean(gaps)),
    )
