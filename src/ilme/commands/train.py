"""`ilme train rnnt`, `ilme train aed`, `ilme train lm`."""
# ruff: noqa: B008  (the defaults are frozen dataclasses, whose fields become options)

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ilme.data.features import FrontendConfig
from ilme.errors import UsageError
from ilme.train.options import AedOptions, LmOptions, LoopOptions, OptimiserOptions, RnntOptions, WarmStart
from ilme.train.runs import MonitorOptions, SpeechData, TextData

Preset = Literal["paper", "small", "tiny"]
Fusion = Literal["none", "deep", "cold", "component", "simple"]
SPEECH = (
    "out",
    "data.train",
    "data.held_out",
    "data.tokenizer",
    "preset",
    "resume",
    "loop.steps",
    "loop.budget",
    "loop.average",
    "data.batch.seconds",
    "optimiser.rate",
    "warm_start.model",
)
SHOWN = {
    "train_rnnt": (*SPEECH, "rnnt.ctc", "tdt", "hat"),
    "train_aed": (*SPEECH, "aed.ilmt", "fusion", "lm"),
    "train_lm": (
        "out",
        "data.train",
        "data.held_out",
        "preset",
        "resume",
        "loop.steps",
        "loop.budget",
        "loop.evaluate_every",
        "loop.patience",
        "loop.average",
        "data.tokens",
        "lm.loss",
        "optimiser.rate",
        "warm_start.model",
        "loop.seed",
    ),
}


def train_rnnt(
    out: str = "out/rnnt",
    data: SpeechData = SpeechData(),
    preset: Preset = "small",
    model: dict[str, Any] | None = None,
    frontend: FrontendConfig = FrontendConfig(),
    rnnt: RnntOptions = RnntOptions(),
    loop: LoopOptions = LoopOptions(),
    optimiser: OptimiserOptions = OptimiserOptions(),
    warm_start: WarmStart = WarmStart(),
    monitor: MonitorOptions = MonitorOptions(),
    hat: bool = False,
    tdt: bool = False,
    resume: bool = False,
) -> None:
    """Train an RNN-T. Several GPUs or machines: start it with torchrun.

    Example:
        ilme train rnnt --data.train out/cuts --data.held_out out/dev --data.tokenizer out/bpe.model --out out/rnnt

    Args:
        out: Folder of the run: the model, checkpoints, metrics.jsonl, curves.png.
        data: Transcribed speech.
        preset: Size of the network.
        model: Fields of the network's config that differ from the preset, such as {encoder: {hidden: 320}}.
        frontend: How audio becomes features; stored with the model.
        rnnt: Auxiliary CTC, how long it is trained alone first, and internal-LM training.
        loop: How long, how often, and when to stop.
        optimiser: AdamW and its learning rate.
        warm_start: Weights to begin with.
        monitor: Text on which the internal LM is measured.
        hat: Factorise the output: blank by a sigmoid, labels by a softmax of their own.
        tdt: A token-and-duration transducer: beside each label or blank, how many frames it lasts (0 to 4).
        resume: Go on from the last checkpoint in `out`, if there is one.
    """
    from ilme.models.tdt import TDT_DURATIONS
    from ilme.train.runs import run_speech

    _check(data)
    changes = dict(model or {})
    if hat:
        changes["hat"] = True
    if tdt:
        changes["durations"] = list(TDT_DURATIONS)
    progress = run_speech(
        "rnnt", Path(out), data, preset, changes, frontend, loop, optimiser, warm_start, monitor, rnnt, resume
    )
    _summary(out, progress)


def train_aed(
    out: str = "out/aed",
    data: SpeechData = SpeechData(),
    preset: Preset = "small",
    model: dict[str, Any] | None = None,
    frontend: FrontendConfig = FrontendConfig(),
    aed: AedOptions = AedOptions(),
    loop: LoopOptions = LoopOptions(),
    optimiser: OptimiserOptions = OptimiserOptions(),
    warm_start: WarmStart = WarmStart(),
    monitor: MonitorOptions = MonitorOptions(),
    fusion: Fusion = "none",
    lm: str = "",
    resume: bool = False,
) -> None:
    """Train an attention encoder-decoder. Several GPUs or machines: start it with torchrun.

    Example:
        ilme train aed --data.train out/cuts --data.held_out out/dev --data.tokenizer out/bpe.model --out out/aed

    Args:
        out: Folder of the run: the model, checkpoints, metrics.jsonl, curves.png.
        data: Transcribed speech.
        preset: Size of the network.
        model: Fields of the network's config that differ from the preset, such as {ctc: true}.
        frontend: How audio becomes features; stored with the model.
        aed: Label smoothing, scheduled sampling, auxiliary CTC, internal-LM training.
        loop: How long, how often, and when to stop.
        optimiser: AdamW and its learning rate.
        warm_start: Weights to begin with.
        monitor: Text on which the internal LM is measured.
        fusion: Train it around a frozen LM: `deep`, `cold`, `component` or `simple` fusion.
        lm: That LM, of `ilme train lm`; it becomes a part of the model.
        resume: Go on from the last checkpoint in `out`, if there is one.
    """
    from ilme.train.runs import run_speech

    _check(data)
    if (fusion == "none") != (not lm):
        raise UsageError("--fusion says how an LM takes part and --lm which one: give both, or none")
    changes = {**(model or {}), "fusion": {"method": fusion}} if lm else model or {}
    progress = run_speech(
        "aed", Path(out), data, preset, changes, frontend, loop, optimiser, warm_start, monitor, aed, resume, lm
    )
    _summary(out, progress)


def train_lm(
    out: str = "out/lm",
    data: TextData = TextData(),
    preset: Preset = "small",
    model: dict[str, Any] | None = None,
    lm: LmOptions = LmOptions(),
    loop: LoopOptions = LoopOptions(),
    optimiser: OptimiserOptions = OptimiserOptions(),
    warm_start: WarmStart = WarmStart(),
    resume: bool = False,
) -> None:
    """Train an LSTM language model. Several GPUs or machines: start it with torchrun.

    Example:
        ilme train lm --data.train out/train.tok --data.held_out out/heldout.tok --out out/lm

    Args:
        out: Folder of the run: the model, checkpoints, metrics.jsonl, curves.png.
        data: Text.
        preset: Size of the network.
        model: Fields of the network's config that differ from the preset, such as {hidden: 1024}.
        lm: Which loss.
        loop: How long, how often, and when to stop.
        optimiser: AdamW and its learning rate.
        warm_start: Weights to begin with.
        resume: Go on from the last checkpoint in `out`, if there is one.
    """
    from ilme.train.runs import run_lm

    if not data.train:
        raise UsageError("name the text with --data.train, a token file of `ilme text tokenize`")
    _summary(out, run_lm(Path(out), data, preset, model or {}, loop, optimiser, warm_start, lm, resume))


def _check(data: SpeechData) -> None:
    if not data.train or not data.tokenizer:
        raise UsageError("name the speech with --data.train and the word pieces with --data.tokenizer, a .model file")


def _summary(out: str, progress: Any) -> None:
    best = "" if progress.best is None else f", best held-out loss {progress.best:.4f} at step {progress.best_step}"
    skipped = f", {progress.bad_total} steps skipped" if progress.bad_total else ""
    print(f"{out}: {progress.step} steps, {progress.hours:.1f} h of audio in {progress.seconds:.0f} s{best}{skipped}")
