"""The internal LM of a transducer: the joint network without its acoustic term, the blank left out (Section 4.1).

What takes the place of f_t:

    removed        nothing, its bias included: what the paper does
    silence        its mean over silence
    mean-encoder   its mean over speech
    learned        a vector, and a factor κ of the logits, learned from transcripts (see `ilme.ilm.learned_vector`)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.ilm.calibration import Calibration, Estimator
from ilme.ilm.hosted import VectorLM, fitting_vector
from ilme.models.rnnt import RNNT
from ilme.protocols import Transducer
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State

__all__ = ["TransducerInternalLM", "estimators", "restored"]

SILENCE = 3.0  # seconds


class TransducerInternalLM(VectorLM):
    """log P(y_u | y_{<u}; θ_RNNT) = log softmax(κ z_u without blank),  z_u = J(v + g_u)   (Eqs. 24–26: v = 0, κ = 1).

    Args:
        host: The transducer.
        vector: v (J,), which takes the place of f_t; None removes the term, bias included.
        scale: κ.
        how: How it was estimated.
    """

    host: Transducer

    @property
    def capturable(self) -> bool:
        return getattr(self.host, "capturable", False)

    def start(self, n: int) -> tuple[Tensor, State]:
        g, state = self.host.start(n)
        return self.rows_of(g), state

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        g, state = self.host.predict(labels, state)
        return self.rows_of(g), state

    def rows_of(self, g: Tensor) -> Tensor:
        """Rows (n, V) from the language terms g (n, J) that the host's own search has already computed."""
        f = None if self.vector is None else self.vector.expand_as(g)
        logits = self.host.join(f, g) * self.scale
        logits[:, self.tokens.blank] = -torch.inf
        return log_softmax(logits)

    def finish(self, rows: Tensor) -> Tensor:
        """A transducer's sum runs to U (Eq. 26): it has no end of sentence to score."""
        return rows.new_zeros(len(rows))


def estimators(model: Any) -> dict[str, Estimator]:
    """The ways that this transducer has."""
    found = {"removed": Estimator(lambda model, _: TransducerInternalLM(model))}
    if hasattr(model, "features"):
        found["silence"] = Estimator(_silence)
    found["mean-encoder"] = Estimator(_mean_encoder, "speech")
    if isinstance(model, RNNT):  # its weights are open, so gradients pass through it
        found["learned"] = Estimator(_learned, "transcripts")
    return found


def restored(model: Transducer, how: str, tensors: dict[str, Tensor], scale: float) -> TransducerInternalLM:
    """Makes an internal LM again from its tensors."""
    vector = fitting_vector(tensors, model.start(1)[0], "acoustic terms")
    return TransducerInternalLM(model, vector, scale, how)


@torch.no_grad()
def _silence(model: Any, _: Calibration) -> TransducerInternalLM:
    features, lengths = model.features([np.zeros(int(SILENCE * model.rate), dtype=np.float32)])
    f, frames = model.encode(features.to(model.device), lengths.to(model.device))
    return TransducerInternalLM(model, _mean([f[0, : int(frames[0])]]), 1.0, "silence")


def _mean_encoder(model: Transducer, calibration: Calibration) -> TransducerInternalLM:
    return TransducerInternalLM(model, _mean([f.to(model.device) for f in calibration.encoded]), 1.0, "mean-encoder")


def _mean(terms: list[Tensor]) -> Tensor:
    """Mean (J,) over every frame of the acoustic terms (T, J)."""
    total = torch.stack([f.double().sum(0) for f in terms]).sum(0)
    return (total / sum(len(f) for f in terms)).to(terms[0].dtype)


def _learned(model: RNNT, calibration: Calibration) -> TransducerInternalLM:
    from ilme.ilm.learned_vector import learn_vector

    learned = learn_vector(model, calibration.labels, calibration.learning)
    return TransducerInternalLM(model, learned.vector, learned.scale, "learned")
