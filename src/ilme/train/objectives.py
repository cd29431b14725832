"""What is minimised: a network with its loss, as one module whose forward pass is the summed loss of a batch.

A batch's loss is divided by its number of units (labels, and the end of each sentence) over all batches and
processes of a step, so the gradient does not depend on how a step is cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ilme.errors import BadInputError
from ilme.losses.aed import decoder_outputs, outputs_loss
from ilme.losses.cross_entropy import linear_cross_entropy, with_ends
from ilme.losses.ctc import ctc_logits, ctc_loss, flat_start_loss, unit_widths
from ilme.losses.guide import ctc_places, guide_loss
from ilme.losses.internal import attention_internal_loss, transducer_internal_loss
from ilme.losses.nce import NoiseContrastive, unigram_noise
from ilme.losses.rnnt import rnnt_loss
from ilme.losses.tdt import tdt_loss
from ilme.models.aed import AED
from ilme.models.encoder import ctc_blank
from ilme.models.fused_lm import FusedAED
from ilme.models.lstm_lm import LSTMLM
from ilme.models.rnnt import RNNT
from ilme.models.tdt import TDT
from ilme.train.decoder_start import check_decoder, start_decoder
from ilme.train.graphs import Body, RecordedBody
from ilme.train.joint_start import check_joint, start_joint
from ilme.train.options import AedOptions, LmOptions, RnntOptions

__all__ = ["AedObjective", "LmObjective", "Objective", "RnntObjective", "recompute_encoder"]

GUIDED = 0.5  # weight of the guide at first: it leads, and leaves the encoder to the labels' own losses
GATHERED = 64  # batches whose draws of scheduled sampling one of them has, where passes are recorded


class Objective(nn.Module):
    """Base: `inputs(batch)` are the tensors that `forward` takes; `forward` is the summed loss."""

    model: Any
    recorded: RecordedBody | None = None
    listen: int = 0  # steps after which a part of the network starts that has not learnt before
    listening: bool = False  # whether it has not started yet
    beside: Mapping[str, Tensor] = MappingProxyType({})  # terms of the last training pass, for the journal; no gradient

    def body(self) -> Body | None:
        """The part of the forward pass that can be recorded as CUDA graphs; None: there is none."""
        return None

    def record(self) -> None:
        """From now on training passes run from recordings."""
        body = self.body()
        if body is None or not self.model.encoder.capturable:
            raise BadInputError(
                "loop.graphs cannot record this network: it needs an encoder whose bidirectional layers have a "
                "projection; leave loop.graphs out"
            )
        self.recorded = RecordedBody(body)

    def at_step(self, step: int) -> None:
        """Called before each step, for what changes over time."""
        self.listening = step <= self.listen
        if self.listen and step == self.listen + 1:
            self.start()

    def start(self) -> None:
        """Called once, after the steps of listening: the part that has not learnt before begins."""

    def inputs(self, batch: Any) -> tuple[Tensor, ...]:
        return batch.features, batch.feature_lengths, batch.labels, batch.label_lengths

    def units(self, batch: Any) -> Tensor:
        """Labels and ends of sentence in the batch, a scalar on its device."""
        count: Tensor = (batch.label_lengths + 1).sum()
        return count


class Auxiliary:
    """CTC on the encoder, after a flat start as options say; its layer is left untrained where CTC has no weight."""

    def __init__(self, model: RNNT | AED, options: RnntOptions | AedOptions, kind: str) -> None:
        if options.ctc and model.ctc is None:
            raise BadInputError(f"{kind}.ctc needs the network's CTC layer: set model.ctc=true")
        if not options.ctc and model.ctc is not None:
            model.ctc.requires_grad_(False)
        self.model, self.flat, self.starting = model, options.flat, False
        self.blank, self._widths = ctc_blank(model.tokens), unit_widths(model.tokens)

    def at_step(self, step: int) -> None:
        self.starting = step <= self.flat

    def loss(self, h: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        layer = self.model.ctc
        assert layer is not None  # where CTC has a weight
        if self.starting:
            self._widths = self._widths.to(h.device)
            late = not self.model.config.encoder.bidirectional
            return flat_start_loss(layer, h, lengths, labels, label_lengths, self.blank, self._widths, late)
        return ctc_loss(layer, h, lengths, labels, label_lengths, self.blank)

    def places(self, h: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        """The frame on which CTC puts each label (B, U)."""
        layer = self.model.ctc
        assert layer is not None  # where CTC has a weight
        return ctc_places(ctc_logits(layer, h.detach()), lengths, labels, label_lengths, self.blank)


class RnntObjective(Objective):
    """The loss of a transducer, with CTC on its encoder and internal-LM training as options say.

        loss = −log P(y|x) + ctc · (−log P_CTC(y|x)) + ilmt · (−log P_ILM(y))

    or in the first `listen` steps, and with `ctc_only` always,   −log P_CTC(y|x).

    A transducer first learns to predict labels without listening; CTC makes the encoder find alignments at once. In
    evaluation mode the loss is −log P(y|x), of CTC with `ctc_only`. Of a TDT it is that of labels and durations.
    """

    def __init__(self, model: RNNT, options: RnntOptions | None = None) -> None:
        super().__init__()
        self.model, self.options = model, options or RnntOptions()
        self.listen = self.options.listen
        if self.listen:
            check_joint(model)
        self.auxiliary = Auxiliary(model, self.options, "rnnt")

    def body(self) -> Body:
        return _TransducerBody(self.model)

    def at_step(self, step: int) -> None:
        super().at_step(step)
        self.auxiliary.at_step(step)

    def start(self) -> None:
        start_joint(self.model)

    def forward(self, features: Tensor, feature_lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        model = self.model
        run = self.recorded if self.recorded is not None and self.training else self.body()
        h, lengths, f, g = run(features, feature_lengths, labels)
        labels = _as_wide(labels, g.shape[1] - 1)
        if self.options.ctc_only or (self.listening and self.training):
            return self.auxiliary.loss(self._normalised(h), lengths, labels, label_lengths)
        loss = _transducer_loss(model, f, g, labels, lengths, label_lengths).sum()
        if self.options.ctc and self.training:
            loss = loss + self.options.ctc * self.auxiliary.loss(self._normalised(h), lengths, labels, label_lengths)
        if self.options.ilmt and self.training:
            internal = transducer_internal_loss(model, g, labels, label_lengths)
            self.beside = {"ilm_loss": internal.detach()}
            loss = loss + self.options.ilmt * internal
        return loss

    def _normalised(self, h: Tensor) -> Tensor:
        """What CTC reads: h after a LayerNorm, the joint network's where the encoder has none of its own."""
        return h if self.model.config.encoder.projection else self.model.encoder_head[0](h)


def _transducer_loss(
    model: RNNT, f: Tensor, g: Tensor, labels: Tensor, lengths: Tensor, label_lengths: Tensor
) -> Tensor:
    """−log P(y|x) (B,)."""
    output, blank = model.output, int(model.tokens.blank or 0)
    if isinstance(model, TDT):
        last = model.duration_output
        weight, bias = torch.cat([output.weight, last.weight]), torch.cat([output.bias, last.bias])
        return tdt_loss(f, g, weight, bias, labels, lengths, label_lengths, model.durations, blank)
    return rnnt_loss(
        f, g, output.weight, output.bias, labels, lengths, label_lengths, blank, factorised=model.config.hat
    )


class _TransducerBody(Body):
    """Encoder and prediction network: h_enc, its lengths, f and g."""

    def __init__(self, model: RNNT) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, lengths: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        h, lengths = self.model.encoder(features, lengths)
        return h, lengths, self.model.encoder_head(h), self.model.predict_all(labels)


class AedObjective(Objective):
    """The loss of an attention decoder, with label smoothing, scheduled sampling, CTC and the rest as options say.

        loss = −Σ_{u=1..U+1} log P(y_u | x, y_{<u}) + ctc · (−log P_CTC(y|x)) + ilmt · (−log P_ILM(y))
               + GUIDED (1 − n / guide)⁺ · guide loss

    at step n after the first `listen`, in which it is −log P_CTC(y|x). In evaluation mode it is the first term alone,
    the plain cross-entropy.
    """

    hearing: RecordedBody | None = None  # the encoder's passes, while it listens alone

    def __init__(self, model: AED, options: AedOptions | None = None, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.options, self.recompute = model, options or AedOptions(), recompute
        for name in ("sampling", "listen"):
            if isinstance(model, FusedAED) and getattr(self.options, name):
                raise BadInputError(f"aed.{name} is for a decoder without an LM inside: leave it or model.fusion out")
        self.sampling = self.options.sampling if self.options.sampling_ramp == 0 else 0.0
        self.listen = self.options.listen
        if self.listen:
            check_decoder(model)
        self.auxiliary = Auxiliary(model, self.options, "aed")
        self.guided = 0.0

    def at_step(self, step: int) -> None:
        super().at_step(step)
        self.auxiliary.at_step(step)
        guide = self.options.guide
        self.guided = GUIDED * max(0.0, 1.0 - (step - self.listen) / guide) if guide else 0.0
        ramp = self.options.sampling_ramp
        self.sampling = self.options.sampling * (min(1.0, step / ramp) if ramp else 1.0)

    def start(self) -> None:
        self.hearing = None
        start_decoder(self.model)

    def forward(self, features: Tensor, feature_lengths: Tensor, labels: Tensor, label_lengths: Tensor) -> Tensor:
        if self.listening and self.training:
            run = self.hearing or _EncoderBody(self.model)
            values, frames = run(features, feature_lengths, labels)
            return self.auxiliary.loss(values, frames, labels, label_lengths)
        replace = self._drawn(labels)
        if self.recorded is not None and self.training and (replace is None or not replace.any()):
            values, frames, attention, h = self.recorded(features, feature_lengths, labels)
            labels = _as_wide(labels, h.shape[1] - 1)
        else:
            values, frames, attention, h = self.body()(features, feature_lengths, labels, replace)
        loss = outputs_loss(self.model, h, labels, label_lengths, self.options.smoothing if self.training else 0.0)
        if self.options.ctc and self.training:
            loss = loss + self.options.ctc * self.auxiliary.loss(values, frames, labels, label_lengths)
        if self.guided and self.training:
            places = self.auxiliary.places(values, frames, labels, label_lengths)
            loss = loss + self.guided * guide_loss(attention, places, frames, label_lengths)
        if self.options.ilmt and self.training:
            internal = attention_internal_loss(self.model, labels, label_lengths)
            self.beside = {"ilm_loss": internal.detach()}
            loss = loss + self.options.ilmt * internal
        return loss

    def record(self) -> None:
        super().record()
        self.hearing = RecordedBody(_EncoderBody(self.model)) if self.listen else None

    def _drawn(self, labels: Tensor) -> Tensor | None:
        """Where the decoder reads its own draw in place of a label (B, U); None: nowhere.

        A pass with draws is not recorded. So that few are, one batch in GATHERED, at random, has the draws of so many.
        """
        if not self.sampling or not self.training:
            return None
        if self.recorded is None or self.sampling * GATHERED > 1:
            return torch.rand(labels.shape) < self.sampling
        return torch.rand(labels.shape) < self.sampling * GATHERED if torch.rand(()) * GATHERED < 1 else None

    def body(self) -> Body:
        return _AttentionBody(self.model, self.recompute, self.options.forget)


class _EncoderBody(Body):
    """The encoder alone: h_enc and its lengths."""

    def __init__(self, model: AED) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, lengths: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        h, lengths = self.model.encoder(features, lengths)
        return h, lengths


class _AttentionBody(Body):
    """Encoder and decoder: h_enc, its lengths, a_0 … a_U, and h_dec_1 … h_dec_{U+1}."""

    def __init__(self, model: AED, recompute: bool, forget: float) -> None:
        super().__init__()
        self.model, self.recompute, self.forget = model, recompute, forget

    def forward(
        self, features: Tensor, lengths: Tensor, labels: Tensor, replace: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        memory = self.model.encode(features, lengths)
        learns = self.model.training
        h, attention = decoder_outputs(
            self.model, memory, labels, replace, self.recompute and learns, self.forget if learns else 0.0
        )
        return memory[0], torch.isfinite(memory[2]).sum(1), attention, h


class LmObjective(Objective):
    """Cross-entropy of a language model, or its noise-contrastive estimate; in evaluation mode cross-entropy.

    Args:
        model: The network: an `LSTMLM`, or one that has its `forward`, `tokens`, `sos` and `output`.
        options: Which loss.
        counts: How often the training text has each id (V,); needed for `nce`.
    """

    def __init__(self, model: LSTMLM | Any, options: LmOptions | None = None, counts: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.options = model, options or LmOptions()
        self.nce: NoiseContrastive | None = None
        if self.options.loss == "nce":
            if counts is None or len(counts) != len(model.tokens):
                raise BadInputError(f"nce needs a count for each of the {len(model.tokens)} tokens")
            self.nce = NoiseContrastive(unigram_noise(counts), self.options.noise_samples)

    def begin(self) -> None:
        """For fresh weights: what the loss wants them to start from."""
        if self.nce is not None:
            self.nce.begin_from(self.model.output.bias)

    def inputs(self, batch: Any) -> tuple[Tensor, ...]:
        return batch.labels, batch.label_lengths

    def forward(self, labels: Tensor, label_lengths: Tensor) -> Tensor:
        model = self.model
        targets, counts = with_ends(labels, label_lengths, model.tokens.eos or 0)
        h = model(nn.functional.pad(labels, (1, 0), value=model.sos))
        h, targets = h[counts], targets[counts]
        if self.nce is not None and self.training:
            return self.nce(h, model.output.weight, model.output.bias, targets)  # type: ignore[no-any-return]
        smoothing = self.options.smoothing if self.training else 0.0
        return linear_cross_entropy(h, model.output.weight, model.output.bias, targets, smoothing)


def _as_wide(labels: Tensor, width: int) -> Tensor:
    """Labels (B, U) padded to what a recording was made for."""
    return nn.functional.pad(labels, (0, width - labels.shape[1]))


def recompute_encoder(model: Any) -> None:
    """Keeps no activations inside the encoder's blocks; the backward pass makes them again."""
    for block in model.encoder.blocks:
        plain = block.forward

        def again(*inputs: Tensor, plain: Any = plain) -> Any:
            if not torch.is_grad_enabled():
                return plain(*inputs)
            return checkpoint(plain, *inputs, use_reentrant=False)

        block.forward = again
