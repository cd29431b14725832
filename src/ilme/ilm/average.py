"""What an average utterance sounds like: the vector that the `average` estimator puts in place of the acoustics."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError
from ilme.models.aed import AED
from ilme.protocols import Transducer

__all__ = ["average_context", "average_encoding"]


@torch.no_grad()
def average_encoding(model: Transducer, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean of f_t (J,) over every frame of the given (features, lengths) batches."""
    total, frames = torch.zeros((), dtype=torch.float64, device=model.device), 0
    for features, lengths in batches:
        f, lengths = model.encode(features, lengths)
        inside = torch.arange(f.shape[1], device=f.device) < lengths[:, None]
        total = total + f[inside].double().sum(0)
        frames += int(inside.sum())
    if not frames:
        raise BadInputError("no frame to average over: give at least one utterance")
    return (total / frames).to(f.dtype)


@torch.no_grad()
def average_context(model: AED, batches: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """Mean of c_u (E,) over every label of the given (features, lengths, labels, label lengths) batches."""
    total, steps = torch.zeros((), dtype=torch.float64, device=model.device), 0
    for features, lengths, labels, label_lengths in batches:
        memory = model.encode(features, lengths)
        rnn = model.rnn.zero_state(len(labels))
        weights, context = model.attend(model.attend.before(memory[2]), memory, rnn[0][:, -1])
        for u, previous in enumerate(nn.functional.pad(labels, (1, 0), value=model.sos).unbind(1)):
            live = label_lengths >= u
            total = total + context[live].double().sum(0)
            steps += int(live.sum())
            h, rnn = model.decode(previous, context, rnn)
            weights, context = model.attend(weights, memory, h)
    if not steps:
        raise BadInputError("no label to average over: give at least one utterance")
    return (total / steps).to(context.dtype)
