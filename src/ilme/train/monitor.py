"""Perplexity of a network's internal LM while it trains: the paper's Figure 1.

Whole sentences go through the network at once, without audio. `ilme.ilm` scores label by label and gives the
same numbers; this is what can run every few hundred steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ilme.errors import BadInputError
from ilme.models.aed import AED
from ilme.models.lstm_lm import LSTMLM
from ilme.models.rnnt import RNNT

__all__ = ["internal_lm_perplexity"]


def internal_lm_perplexity(model: Any, sentences: Sequence[Sequence[int]], batch: int = 256) -> float:
    """exp(−Σ log P(y) / units) per token, of a transducer, an attention decoder or (its own) a language model.

    A transducer's internal LM has no end of sentence (Eq. 26); the others score it.
    """
    was_training = model.training
    model.eval()
    total, units = 0.0, 0
    ordered = sorted((s for s in sentences if len(s)), key=len)
    if not ordered:
        raise BadInputError("there is no text to measure the internal LM on")
    with torch.no_grad():
        for start in range(0, len(ordered), batch):
            rows = [torch.tensor(list(s), dtype=torch.long) for s in ordered[start : start + batch]]
            labels = pad_sequence(rows, batch_first=True).to(model.device)
            lengths = torch.tensor([len(r) for r in rows], device=model.device)
            score, count = _scores(model, labels, lengths)
            total += score
            units += count
    model.train(was_training)
    return math.exp(-total / units)


def _scores(model: Any, labels: Tensor, lengths: Tensor) -> tuple[float, int]:
    """Σ log P of labels (B, U) with these lengths, and how many tokens were scored."""
    if isinstance(model, RNNT):
        logits = model.join(None, model.predict_all(labels)[:, :-1]).float()  # Eqs. 24–26
        logits[..., model.tokens.blank] = -torch.inf
        targets, ends = labels, 0
    elif isinstance(model, AED | LSTMLM):
        steps = torch.arange(labels.shape[1] + 1, device=labels.device)
        targets = nn.functional.pad(labels, (0, 1)).masked_fill(steps == lengths[:, None], model.tokens.eos or 0)
        previous = nn.functional.pad(labels, (1, 0), value=model.sos)
        if isinstance(model, AED):
            h = model.rnn(model.embedding(previous))
            logits = model.output(model.beside_lm(h, labels)).float()  # Eqs. 31, 32
        else:
            logits = model.output(model(previous)).float()
        ends = 1
    else:
        raise BadInputError(f"{type(model).__name__} has no internal LM that is known here")
    scores = logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    inside = torch.arange(scores.shape[1], device=labels.device) < lengths[:, None] + ends
    return float(scores[inside].double().sum()), int(inside.sum())
