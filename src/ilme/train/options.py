"""Options of a training run: what each field means, and which values make no sense."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ilme.errors import BadInputError

__all__ = ["AedOptions", "LmOptions", "LoopOptions", "OptimiserOptions", "RnntOptions", "WarmStart"]


@dataclass(frozen=True)
class OptimiserOptions:
    """AdamW and its learning rate.

    Attributes:
        rate: Peak learning rate.
        warmup: Steps over which it rises from 0.
        decay: How it falls afterwards: `cosine` or `linear` to `final` at the last step, `inverse_sqrt` with
            √(warmup / step), or `constant`.
        final: Share of the peak that is left at the last step.
        beta1: Decay of AdamW's first moment.
        beta2: Decay of AdamW's second moment.
        weight_decay: On matrices; biases and LayerNorm are never decayed.
        clip: Largest norm of the gradient; 0 leaves it as it is.
        layer_rates: Factor of the learning rate by name pattern, such as {"encoder.*": 0.1}; the first match counts.
        frozen: Name patterns of parameters that are not trained, such as ["encoder.*"].
        thaw: Steps at the start in which what has a factor in `layer_rates` stands still: fresh layers on top of
            trained ones would first undo what those have learnt.
    """

    rate: float = 1e-3
    warmup: int = 500
    decay: Literal["constant", "cosine", "linear", "inverse_sqrt"] = "cosine"
    final: float = 0.02
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 1e-3
    clip: float = 5.0
    layer_rates: dict[str, float] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    thaw: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen", tuple(self.frozen))
        if self.rate <= 0:
            raise BadInputError(f"optimiser.rate must be positive, got {self.rate}")
        if self.warmup < 0 or not 0 <= self.final <= 1:
            raise BadInputError(f"optimiser.warmup={self.warmup} must be ≥ 0 and final={self.final} in 0..1")
        if self.clip < 0 or self.weight_decay < 0:
            raise BadInputError(f"optimiser.clip={self.clip}, weight_decay={self.weight_decay}: must be ≥ 0")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise BadInputError(f"optimiser.beta1={self.beta1}, beta2={self.beta2}: must be at least 0 and less than 1")
        if any(factor < 0 for factor in self.layer_rates.values()):
            raise BadInputError(f"optimiser.layer_rates must not be negative: {self.layer_rates}")
        if self.thaw < 0 or (self.thaw and not self.layer_rates):
            raise BadInputError(f"optimiser.thaw={self.thaw} must be ≥ 0, and layer_rates say what stands still")


@dataclass(frozen=True)
class LoopOptions:
    """How long, how often, and when to stop.

    Attributes:
        steps: Updates of the weights.
        accumulate: Batches whose gradients make one update.
        precision: `bf16` (mixed), `fp32`, or `auto`: bf16 on a CUDA device.
        average: Decay of the moving average of the weights (EMA), such as 0.999; 0 keeps none. Where there is one, it
            is what is evaluated and saved as the model.
        evaluate_every: Steps between evaluations on held-out data.
        patience: Evaluations without a new best after which training stops; 0 never stops early. A held-out loss that
            is not finite is never the best.
        choose: Which weights become the model: those with the `best` held-out loss, or the `last`. As a network grows
            too sure of itself its held-out loss can rise while its errors still become fewer.
        save_every: Steps between checkpoints.
        keep: Checkpoints that are kept, besides the best.
        log_every: Steps between lines of the log.
        ilm_every: Steps between measurements of the internal LM's perplexity; 0 makes none.
        bad_steps: Skipped steps (a loss or gradient that is not finite) in a row after which training stops.
        recompute: Parts whose activations are made again in the backward pass to save memory: `encoder`,
            `decoder` (an AED's).
        budget: Minutes of training in all, resumptions included; 0 sets none. The run ends with them, its learning
            rate fallen as if `steps` had been known before, however busy the machine is; `steps` is then the most.
        minutes: Stop, with a checkpoint, after so much time; 0 runs on. `--resume` goes on from there.
        tensorboard: Also write event files, if the package is installed.
        graphs: Record encoder and decoder as CUDA graphs, one for each shape of batch: small networks train several
            times faster. It needs one process, one batch per step, and memory for each shape; on a CPU and
            with several processes the run says that it is left out.
        seed: Of weights, order, dropout and noise.
    """

    steps: int = 10_000
    accumulate: int = 1
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    average: float = 0.0
    evaluate_every: int = 500
    patience: int = 0
    choose: Literal["best", "last"] = "best"
    save_every: int = 500
    keep: int = 2
    log_every: int = 20
    ilm_every: int = 0
    bad_steps: int = 20
    recompute: tuple[str, ...] = ()
    budget: float = 0.0
    minutes: float = 0.0
    tensorboard: bool = True
    graphs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "recompute", tuple(self.recompute))
        for name in ("steps", "accumulate", "evaluate_every", "save_every", "keep", "log_every", "bad_steps"):
            if getattr(self, name) < 1:
                raise BadInputError(f"loop.{name} must be at least 1, got {getattr(self, name)}")
        if self.budget < 0 or self.minutes < 0:
            raise BadInputError(f"loop.budget={self.budget} and loop.minutes={self.minutes} must not be negative")
        if not 0 <= self.average < 1:
            raise BadInputError(f"loop.average must be at least 0 and less than 1, got {self.average}")
        if self.graphs and (self.accumulate > 1 or self.recompute):
            raise BadInputError("loop.graphs goes with neither loop.accumulate nor loop.recompute: leave one out")
        if self.choose not in ("best", "last"):
            raise BadInputError(f"loop.choose={self.choose!r} must be best or last")
        unknown = set(self.recompute) - {"encoder", "decoder"}
        if unknown:
            raise BadInputError(f"loop.recompute names {sorted(unknown)[0]!r}; there are encoder and decoder")


@dataclass(frozen=True)
class RnntOptions:
    """What only the transducer's loss has.

    Attributes:
        ctc: Weight of the auxiliary CTC loss; the network needs its CTC layer (model.ctc).
        listen: Steps at the start in which CTC alone is trained; the joint network then starts from its layer.
        flat: Steps at the start in which the CTC layer learns labels spread evenly over each utterance, not CTC.
        ilmt: α of internal-LM training: the weight of the internal LM's own loss beside the transducer's.
        ctc_only: Train the encoder and its CTC layer and nothing else: a CTC model, which is loaded with `--head ctc`.
    """

    ctc: float = 0.0
    listen: int = 0
    flat: int = 0
    ilmt: float = 0.0
    ctc_only: bool = False

    def __post_init__(self) -> None:
        _check_weights(self, "rnnt")
        if self.ctc_only and (not self.ctc or self.ilmt or self.listen):
            raise BadInputError("rnnt.ctc_only trains CTC alone: give rnnt.ctc a weight, and leave ilmt and listen out")


@dataclass(frozen=True)
class AedOptions:
    """What only the attention encoder-decoder's loss has.

    Attributes:
        smoothing: Label smoothing.
        sampling: Scheduled sampling: largest rate at which the decoder reads its own draws; 0.0001 in the paper.
        sampling_ramp: Steps over which the rate rises from 0 to that; 0 has it from the start.
        forget: Rate at which the decoder reads nothing in place of a label, so that it cannot learn sentences by heart.
        ctc: Weight of the auxiliary CTC loss; the network needs its CTC layer (model.ctc).
        listen: Steps at the start in which CTC alone is trained; the decoder then starts from its layer.
        flat: Steps at the start in which the CTC layer learns labels spread evenly over each utterance, not CTC.
        guide: Steps, from when the decoder starts, over which a loss fades that draws the attention to the frame where
            CTC puts the next label; it has to learn that first (`listen`).
        ilmt: α of internal-LM training: the weight of the internal LM's own loss beside the decoder's.
    """

    smoothing: float = 0.1
    sampling: float = 0.0
    sampling_ramp: int = 0
    forget: float = 0.0
    ctc: float = 0.0
    listen: int = 0
    flat: int = 0
    guide: int = 0
    ilmt: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.sampling <= 1:
            raise BadInputError(f"aed.sampling={self.sampling} must be in 0..1")
        if not 0 <= self.forget < 1:
            raise BadInputError(f"aed.forget={self.forget} must be at least 0 and below 1")
        if self.guide < 0:
            raise BadInputError(f"aed.guide={self.guide} must not be negative")
        if self.guide and not self.listen:
            raise BadInputError(
                "aed.guide draws the attention to where CTC puts the labels: give CTC steps to learn that, aed.listen"
            )
        _check_weights(self, "aed")


def _check_weights(options: RnntOptions | AedOptions, kind: str) -> None:
    for name in ("ctc", "listen", "flat", "ilmt"):
        if getattr(options, name) < 0:
            raise BadInputError(f"{kind}.{name}={getattr(options, name)} must not be negative")
    for name, does in (("listen", "trains CTC first"), ("flat", "comes before CTC")):
        if getattr(options, name) and not options.ctc:
            raise BadInputError(f"{kind}.{name} {does}, and {kind}.ctc=0 leaves it out: give it a weight")


@dataclass(frozen=True)
class LmOptions:
    """What only the language model's loss has.

    Attributes:
        loss: `ce`, full cross-entropy, or `nce`, noise-contrastive estimation (the paper's).
        noise_samples: Noise tokens a batch for `nce`.
        smoothing: Label smoothing for `ce`.
    """

    loss: Literal["ce", "nce"] = "ce"
    noise_samples: int = 1024
    smoothing: float = 0.0


@dataclass(frozen=True)
class WarmStart:
    """Weights to begin with.

    Attributes:
        model: A trained model (folder or file); None starts from fresh weights.
        parts: Name patterns of the weights to take, such as ["encoder.*"].
    """

    model: str | None = None
    parts: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
