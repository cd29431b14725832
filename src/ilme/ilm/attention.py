"""The internal LM of the paper's attention decoder: the decoder without its context vector (Section 4.2).

What takes the place of the context vector:

    removed        nothing: what the paper does
    mean-context   its mean over labels of speech (Zeineldeen et al. 2021)
    learned        a vector, and a factor κ of the logits, learned from transcripts (see `ilme.ilm.learned_vector`)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ilme.ilm.calibration import Calibration, Estimator
from ilme.ilm.hosted import VectorLM, fitting_vector
from ilme.models.aed import AED, Memory
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State, cat, map_tensors

__all__ = ["AttentionInternalLM", "estimators", "restored"]


class AttentionInternalLM(VectorLM):
    """log P(y_u | y_{<u}; θ_AED) = log softmax κ(W_d DecoderRNN(h_{u−1}, e_{u−1} + v) + b_d)   (Eqs. 31, 32).

    In the paper v = 0 and κ = 1. The end is scored. The decoder state is its own: one that has
    never seen a context vector.

    Args:
        host: The attention decoder.
        vector: v (E,), which takes the place of the context vector; None removes it.
        scale: κ.
        how: How it was estimated.
    """

    host: AED

    def start(self, n: int) -> tuple[Tensor, State]:
        sos = torch.full((n,), self.host.sos, device=self.device)
        return self.score(sos, self.host.zero_state(n))

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        context = None if self.vector is None else self.vector.expand(len(labels), -1)
        h, state = self.host.decode(labels, context, state)
        logits = self.host.output(h)
        return log_softmax(logits if self.scale == 1 else logits * self.scale), state

    def step_both(
        self, labels: Tensor, state: State, internal: State, memory: Memory
    ) -> tuple[tuple[Tensor, State], tuple[Tensor, State]]:
        """The host's step and this scorer's in one: both decoders' rows go through each weight matrix together."""
        host, n = self.host, len(labels)
        rnn, weights, context = state
        absent = torch.zeros_like(context) if self.vector is None else self.vector.expand_as(context)
        h, both = host.decode(labels.repeat(2), torch.cat([context, absent]), cat([rnn, internal]))
        weights, context = host.attend(weights, memory, h[:n])
        logits = host.output(h)
        if self.scale != 1:
            logits[n:] *= self.scale
        rows = log_softmax(logits)
        own, internal = (map_tensors(lambda x, part=part: x[part], both) for part in (slice(n), slice(n, None)))
        return (rows[:n], (own, weights, context)), (rows[n:], internal)


def estimators(model: AED) -> dict[str, Estimator]:
    """The ways that this decoder has."""
    return {
        "removed": Estimator(lambda model, _: AttentionInternalLM(model)),
        "mean-context": Estimator(_mean_context, "speech"),
        "learned": Estimator(_learned, "transcripts"),
    }


def restored(model: AED, how: str, tensors: dict[str, Tensor], scale: float) -> AttentionInternalLM:
    """Makes an internal LM again from its tensors."""
    vector = fitting_vector(tensors, model.embedding.weight, "a context vector")
    return AttentionInternalLM(model, vector, scale, how)


@torch.no_grad()
def _mean_context(model: AED, calibration: Calibration) -> AttentionInternalLM:
    """Mean of c_u (E,) over every label of every utterance, the end included."""
    total, steps = torch.zeros((), dtype=torch.float64, device=model.device), 0
    for memory, labels in zip(calibration.encoded, calibration.labels, strict=True):
        memory = map_tensors(lambda x: x.to(model.device), memory)
        given = torch.tensor([list(labels)], dtype=torch.long, device=model.device)
        rnn = model.zero_state(1)
        weights, context = model.first_look(memory)
        for previous in nn.functional.pad(given, (1, 0), value=model.sos).unbind(1):
            total = total + context[0].double()
            steps += 1
            h, rnn = model.decode(previous, context, rnn)
            weights, context = model.attend(weights, memory, h)
    return AttentionInternalLM(model, (total / steps).to(context.dtype), 1.0, "mean-context")


def _learned(model: AED, calibration: Calibration) -> AttentionInternalLM:
    from ilme.ilm.learned_vector import learn_vector

    learned = learn_vector(model, calibration.labels, calibration.learning)
    return AttentionInternalLM(model, learned.vector, learned.scale, "learned")
