"""The internal LM of a CTC model. Its frames know nothing of the labels before, so the simplest estimates are unigrams.

    removed       log softmax(b) without the blank: the output layer with nothing to hear, as the paper removes f_t
    frame-prior   log of the mean posterior over the frames of speech, without the blank
    distilled     a small LM over the last labels, learned from the model's own posteriors (see `ilme.ilm.distilled`)

All of them score labels, once each: blank is the model's alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ilme.errors import CheckpointError
from ilme.ilm.calibration import Calibration, Estimator
from ilme.ilm.distilled import DistilledOptions, Student, distil
from ilme.ilm.hosted import HostedLM
from ilme.protocols import CTCModel, InternalLM
from ilme.runtime.numerics import log_softmax
from ilme.runtime.state import State

__all__ = ["CTCBigram", "CTCUnigram", "estimators", "frame_prior", "restored"]

LEAST = -1e4  # nats
RAREST = 1e-10  # of the labels: one that the speech never had must not be worth any price when it is subtracted


class _FrameLM(HostedLM):
    host: CTCModel

    def finish(self, rows: Tensor) -> Tensor:
        """CTC ends where the frames do: it has no end of sentence to score."""
        return rows.new_zeros(len(rows))


class CTCUnigram(_FrameLM):
    """log P(v), whatever stands before v.

    Args:
        host: The CTC model.
        row: log P (V,); what it says of the blank is not read.
        how: How it was estimated.
    """

    def __init__(self, host: CTCModel, row: Tensor, how: str) -> None:
        self.host, self.how, self.scale = host, how, 1.0
        self.tensors: dict[str, Tensor] = {"row": row.clamp(min=LEAST)}  # files hold finite numbers alone
        self.row = row.clone()
        self.row[int(host.tokens.blank or 0)] = -torch.inf

    def start(self, n: int) -> tuple[Tensor, State]:
        return self.row.expand(n, -1), None

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.start(len(labels))


class CTCBigram(_FrameLM):
    """log P(v | w), w the label before: a distilled LM.

    Args:
        host: The CTC model.
        student: What was distilled from it.
    """

    def __init__(self, host: CTCModel, student: Student) -> None:
        self.host, self.student, self.how, self.scale = host, student, "distilled", 1.0
        self.blank = int(host.tokens.blank or 0)
        self.tensors: dict[str, Tensor] = dict(vars(student))

    def start(self, n: int) -> tuple[Tensor, State]:
        return self.score(torch.full((n,), self.blank, device=self.device), None)

    @torch.no_grad()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self.student.rows(labels, self.blank), None


def estimators(model: Any) -> dict[str, Estimator]:
    """The ways that this CTC model has."""
    return {
        "removed": Estimator(_removed),
        "frame-prior": Estimator(_frame_prior, "speech"),
        "distilled": Estimator(_distilled, "speech"),
    }


def restored(model: CTCModel, how: str, tensors: dict[str, Tensor], scale: float) -> InternalLM:
    """Makes an internal LM again from its tensors."""
    if how == "distilled":
        return CTCBigram(model, _student(model, tensors))
    row = tensors.get("row")
    if row is None or row.shape != (len(model.tokens),):
        found = None if row is None else tuple(row.shape)
        raise CheckpointError(f"this internal LM was made for another model: it has scores {found}, not one per label")
    return CTCUnigram(model, row.to(model.device), how)


def _student(model: CTCModel, tensors: dict[str, Tensor]) -> Student:
    V = len(model.tokens)
    shapes = {name: tuple(tensors[name].shape) for name in ("embedding", "output", "bias") if name in tensors}
    width = shapes.get("embedding", (V, 0))[-1]
    if shapes != {"embedding": (V, width), "output": (V, width), "bias": (V,)}:
        raise CheckpointError(f"this internal LM was made for another model: {shapes}, and the model has {V} units")
    return Student(**{name: tensors[name].to(model.device) for name in shapes})


def frame_prior(model: CTCModel, heard: list[Tensor]) -> Tensor:
    """log P(v) = log Σ_t P(v | x_t) − log Σ_{w ≠ blank} Σ_t P(w | x_t)   (V,), over encoder outputs (T, E)."""
    blank = int(model.tokens.blank or 0)
    mass = torch.stack([log_softmax(model.emit(h)).double().exp().sum(0) for h in heard]).sum(0)
    mass[blank] = 0.0
    return (mass / mass.sum()).clamp(min=RAREST).log().float()


@torch.no_grad()
def _removed(model: CTCModel, _: Calibration) -> CTCUnigram:
    logits = model.emit(None).clone()
    logits[int(model.tokens.blank or 0)] = -torch.inf
    return CTCUnigram(model, log_softmax(logits), "removed")


@torch.no_grad()
def _frame_prior(model: CTCModel, calibration: Calibration) -> CTCUnigram:
    return CTCUnigram(model, frame_prior(model, [h.to(model.device) for h in calibration.encoded]), "frame-prior")


def _distilled(model: CTCModel, calibration: Calibration) -> CTCBigram:
    options = calibration.learning if isinstance(calibration.learning, DistilledOptions) else None
    return CTCBigram(model, distil(model, list(calibration.encoded), calibration.labels, options))
