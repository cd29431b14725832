"""What a search returns: an n-best list per utterance, with every component score kept apart and unweighted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ilme.errors import BadInputError
from ilme.fusion import FusionWeights, fuse

__all__ = ["Hypothesis", "NBest", "Scores"]


@dataclass(frozen=True)
class Scores:
    """Unweighted component scores of one label sequence, in nats.

    Attributes:
        asr: log P_E2E(y|x); for a transducer summed over the alignments the search kept.
        lm: log P(y) of the external LM, 0 if none ran.
        subtracted: log P(y) of the subtracted LM, 0 if none ran.
        length: |y|, the number of labels.
        phrases: The bonus of the listed phrases in y, 0 if none are listed.
    """

    asr: float
    lm: float = 0.0
    subtracted: float = 0.0
    length: float = 0.0
    phrases: float = 0.0

    def fused(self, weights: FusionWeights) -> float:
        return fuse(self.asr, self.lm, self.subtracted, self.length, weights, self.phrases)


@dataclass(frozen=True)
class Hypothesis:
    """One label sequence.

    Attributes:
        tokens: Its labels, without special ids.
        score: What the search ranked it by: the fused score, length-normalised if that was asked for.
        scores: The unweighted components.
        times: The encoder frame at which each label was emitted; None where the model has no alignment.
        text: The labels as text; empty until a tokenizer has seen them.
    """

    tokens: tuple[int, ...]
    score: float
    scores: Scores
    times: tuple[int, ...] | None = None
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Hypothesis:
        try:
            return cls(
                tokens=tuple(data["tokens"]),
                score=float(data["score"]),
                scores=Scores(**data["scores"]),
                times=None if data.get("times") is None else tuple(data["times"]),
                text=data.get("text", ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"not a hypothesis: {error!r} in {str(data)[:200]}") from error


NBest = list[Hypothesis]  # best first
