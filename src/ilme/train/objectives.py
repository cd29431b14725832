"""What is minimised: a network with its loss, as one module whose forward pass is the summed loss of a batch.

A batch's loss is divided by its number of units (labels, and the end of each sentence) over all batches and
processes of a step, so the gradient does not depend on how a step is cut into batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ilme.errors import BadInputError
from ilme.losses.aed import aed_loss
from ilme.losses.cross_entropy import linear_cross_entropy
from ilme.losses.ctc import ctc_loss
from ilme.losses.nce import NoiseContrastive, unigram_noise
from ilme.losses.rnnt import rnnt_loss
from ilme.models.aed import AED
from ilme.models.lstm_lm import LSTMLM
from ilme.models.rnnt import RNNT
from ilme.train.options import AedOptions, LmOptions

__all__ = ["AedObjective", "LmObjective", "Objective", "RnntObjective", "recompute_encoder"]


class Objective(nn.Module):
    """Base: `inputs(batch)` are the tensors that `forward` takes; `forward` is the summed loss."""

    model: Any

    def at_step(self, step: int) -> None:
        """Called before each step, for what changes over time."""

    def inputs(self, batch: Any) -> tuple[Tensor, ...]:
        return batch.features, batch.feature_lengths, batch.labels, batch.label_lengths

    def units(self, batch: Any) -> Tensor:
        """Labels and ends of sentence in the batch, a scalar on its device."""
        count: Tensor = (batch.label_lengths + 1).sum()
        return count


class RnntObjective(Objective):
    """−log P(y|x) of a transducer; in training also `ctc` times the CTC loss of its encoder.

    Args:
        model: The network; it needs its CTC layer (model.ctc) where `ctc` is not 0.
        ctc: Weight of the auxiliary CTC loss. A transducer first learns to predict labels without listening; CTC makes
            the encoder find alignments at once.
    """

    def __init__(self, model: RNNT, ctc: float = 0.0) -> None:
        super().__init__()
        self.model, self.ctc = model, ctc
        if ctc and model.ctc is None:
            raise BadInputError("an auxiliary CTC loss needs the network's CTC layer: set model.ctc=true")
        if not ctc and model.ctc is not None:
            model.ctc.requires_grad_(False)

    def forward(self, features: Tensor, feature_lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        model = self.model
        h, lengths = model.encoder(features, feature_lengths)
        f, g = model.encoder_head(h), model.predict_all(labels)
        output, blank = model.output, model.tokens.blank
        loss = rnnt_loss(f, g, output.weight, output.bias, labels, lengths, label_lengths, blank=blank).sum()
        if self.ctc and self.training and model.ctc is not None:
            loss = loss + self.ctc * ctc_loss(model.ctc, h, lengths, labels, label_lengths, blank or 0)
        return loss


class AedObjective(Objective):
    """Label-smoothed cross-entropy of an attention decoder, with scheduled sampling and CTC as options say.

    In evaluation mode it is the plain cross-entropy.
    """

    def __init__(self, model: AED, options: AedOptions | None = None, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.options, self.recompute = model, options or AedOptions(), recompute
        self.sampling = self.options.sampling if self.options.sampling_ramp == 0 else 0.0
        if self.options.ctc and model.ctc is None:
            raise BadInputError("aed.ctc needs the network's CTC layer: set model.ctc=true")
        if not self.options.ctc and model.ctc is not None:
            model.ctc.requires_grad_(False)

    def at_step(self, step: int) -> None:
        ramp = self.options.sampling_ramp
        self.sampling = self.options.sampling * (min(1.0, step / ramp) if ramp else 1.0)

    def forward(self, features: Tensor, feature_lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        memory = self.model.encode(features, feature_lengths)
        if not self.training:
            return aed_loss(self.model, memory, labels, label_lengths)
        replace = torch.rand(labels.shape) < self.sampling if self.sampling else None
        loss = aed_loss(self.model, memory, labels, label_lengths, self.options.smoothing, replace, self.recompute)
        if self.options.ctc and self.model.ctc is not None:
            frames = torch.isfinite(memory[2]).sum(1)
            blank = self.model.tokens.eos or 0
            loss = loss + self.options.ctc * ctc_loss(self.model.ctc, memory[0], frames, labels, label_lengths, blank)
        return loss


class LmObjective(Objective):
    """Cross-entropy of a language model, or its noise-contrastive estimate; in evaluation mode cross-entropy.

    Args:
        model: The network.
        options: Which loss.
        counts: How often the training text has each id (V,); needed for `nce`.
    """

    def __init__(self, model: LSTMLM, options: LmOptions | None = None, counts: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.options = model, options or LmOptions()
        self.nce: NoiseContrastive | None = None
        if self.options.loss == "nce":
            if counts is None or len(counts) != len(model.tokens):
                raise BadInputError(f"nce needs a count for each of the {len(model.tokens)} tokens")
            self.nce = NoiseContrastive(unigram_noise(counts), self.options.noise_samples)

    def inputs(self, batch: Any) -> tuple[Tensor, ...]:
        return batch.labels, batch.label_lengths

    def forward(self, labels: Tensor, label_lengths: Tensor) -> Tensor:
        model = self.model
        steps = torch.arange(labels.shape[1] + 1, device=labels.device)
        targets = nn.functional.pad(labels, (0, 1)).masked_fill(steps == label_lengths[:, None], model.tokens.eos)
        keep = (steps <= label_lengths[:, None]).flatten()
        h = model(nn.functional.pad(labels, (1, 0), value=model.sos))
        h, targets = h.flatten(0, 1)[keep], targets.flatten()[keep]
        if self.nce is not None and self.training:
            return self.nce(h, model.output.weight, model.output.bias, targets)  # type: ignore[no-any-return]
        smoothing = self.options.smoothing if self.training else 0.0
        return linear_cross_entropy(h, model.output.weight, model.output.bias, targets, smoothing)


def recompute_encoder(model: Any) -> None:
    """Keeps no activations inside the encoder's blocks; the backward pass makes them again."""
    for block in model.encoder.blocks:
        plain = block.forward

        def again(*inputs: Tensor, plain: Any = plain) -> Any:
            if not torch.is_grad_enabled():
                return plain(*inputs)
            return checkpoint(plain, *inputs, use_reentrant=False)

        block.forward = again
