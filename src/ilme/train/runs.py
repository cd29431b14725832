"""A training run from its options: data, network, loss and loop put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ilme import models
from ilme.data.augment import AudioAugmentation
from ilme.data.batches import BatchConfig, Batches, cut_text
from ilme.data.features import FrontendConfig
from ilme.data.manifests import open_cuts
from ilme.data.tokenfile import TokenFile
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.runtime.configs import changed_config, config_to_json
from ilme.runtime.files import write_json
from ilme.tokens import Tokens, check_same_vocabulary
from ilme.train.loop import Trainer, make_fabric
from ilme.train.monitor import internal_lm_perplexity
from ilme.train.objectives import AedObjective, LmObjective, Objective, RnntObjective
from ilme.train.optimiser import start_from
from ilme.train.options import AedOptions, LmOptions, LoopOptions, OptimiserOptions, RnntOptions, WarmStart
from ilme.train.resident import ResidentNoise, ResidentSource, load_resident
from ilme.train.snapshots import Progress
from ilme.train.sources import TextSource

__all__ = ["MonitorOptions", "SpeechData", "TextData", "network_config", "run_lm", "run_speech"]


@dataclass(frozen=True)
class SpeechData:
    """Transcribed speech.

    Attributes:
        train: One or more manifests of cuts, folders that `ilme data import` wrote, or Shar shards.
        held_out: One of those, for held-out loss; None evaluates nothing.
        tokenizer: A sentencepiece model, made by `ilme text bpe`.
        batch: Batch size, order and augmentation.
        resident: Hold all audio in the memory of the device and make features there; then `noise` below is what is
            mixed in, not `batch.audio`.
        noise: For `resident`.
        easy_first: For `resident`: the first epoch goes from short utterances to long ones, without noise.
        utterances: Use so many training utterances only; 0 uses all.
    """

    train: tuple[str, ...] | str = ()
    held_out: str | None = None
    tokenizer: str = ""
    batch: BatchConfig = field(default_factory=BatchConfig)
    resident: bool = False
    noise: ResidentNoise = field(default_factory=ResidentNoise)
    easy_first: bool = False
    utterances: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", (self.train,) if isinstance(self.train, str) else tuple(self.train))
        if self.utterances < 0:
            raise BadInputError(f"data.utterances must not be negative, got {self.utterances}; 0 uses all")
        if self.easy_first and not self.resident:
            raise BadInputError("data.easy_first orders audio that is held in memory: set data.resident=true as well")


@dataclass(frozen=True)
class TextData:
    """Text as token files, made by `ilme text tokenize`.

    Attributes:
        train: Training text.
        held_out: Held-out text; None evaluates nothing.
        tokens: Most tokens in a batch, padding counted.
        longest: Longer sentences are cut.
        seed: Decides the order.
    """

    train: str = ""
    held_out: str | None = None
    tokens: int = 16_384
    longest: int = 256
    seed: int = 0


@dataclass(frozen=True)
class MonitorOptions:
    """Text on which the internal LM is measured while the model trains.

    Attributes:
        text: A file with one sentence a line; None takes the held-out transcripts.
        sentences: At most so many of them.
        source_lm: A trained LM whose perplexity on the same text is written beside.
    """

    text: str | None = None
    sentences: int = 1000
    source_lm: str | None = None


def network_config(kind: str, preset: str, changes: dict[str, Any]) -> Any:
    """The config of a preset with some fields changed, such as {"encoder": {"hidden": 320}}."""
    return changed_config(models.preset(kind, preset), changes)


def run_speech(
    kind: Literal["rnnt", "aed"],
    out: Path,
    data: SpeechData,
    preset: str,
    changes: dict[str, Any],
    frontend: FrontendConfig,
    loop: LoopOptions,
    optimiser: OptimiserOptions,
    warm_start: WarmStart,
    monitor: MonitorOptions,
    loss: RnntOptions | AedOptions,
    resume: bool = False,
    lm: str = "",
) -> Progress:
    """Trains an RNN-T or an AED, around the LM `lm` if one is given; the model lies in `out` when it ends."""
    if not data.train or not data.tokenizer:
        raise BadInputError("data.train (cuts) and data.tokenizer (a sentencepiece model) must be given")
    fabric = make_fabric(loop.precision, loss.listen > 0)
    role: Literal["transducer", "attention"] = "transducer" if kind == "rnnt" else "attention"
    tokenizer = SentencePieceTokenizer.load(data.tokenizer, role)
    torch.manual_seed(loop.seed)
    inner = load_checkpoint(lm, "lm").model if lm else None
    config = network_config(kind, preset, changes)
    if inner is not None:
        config = changed_config(config, {"fusion": {"lm": config_to_json(inner.config)}})
    elif kind == "aed" and config.fusion.method != "none":
        raise BadInputError("model.fusion.method trains a decoder around an LM: name it with --fusion and --lm")
    if config.encoder.features != frontend.dimension:
        raise BadInputError(
            f"the frontend gives {frontend.dimension} features, the network reads {config.encoder.features}: "
            f"set model.encoder.features={frontend.dimension}"
        )
    model = models.build(kind, config, tokenizer.tokens)
    objective: Objective = (
        RnntObjective(model, loss)
        if isinstance(loss, RnntOptions)
        else AedObjective(model, loss, "decoder" in loop.recompute)
    )
    start_from(model, warm_start)
    if inner is not None:
        model.put_lm(inner)
    source, held_out, transcripts = _speech(data, tokenizer, frontend, fabric)
    perplexity = None
    if loop.ilm_every:
        perplexity = _perplexity(monitor, tokenizer, transcripts, fabric.device)
    _write_config(out, fabric, kind=kind, preset=preset, network=config_to_json(config), data=asdict(data),
                  frontend=asdict(frontend), loop=asdict(loop), optimiser=asdict(optimiser),
                  warm_start=asdict(warm_start), monitor=asdict(monitor), loss=asdict(loss))  # fmt: skip
    trainer = Trainer(
        out, objective, source, held_out, loop, optimiser,
        lambda trained: save_model(out, trained, tokenizer, frontend), perplexity, fabric,
    )  # fmt: skip
    return trainer.run(resume)


def _speech(
    data: SpeechData, tokenizer: SentencePieceTokenizer, frontend: FrontendConfig, fabric: Any
) -> tuple[Any, Callable[[], Iterable[Any]] | None, list[str]]:
    """Training batches, held-out batches and held-out transcripts."""
    ranks = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    plain = replace(data.batch, audio=AudioAugmentation(), masks=None, shuffle=False, workers=0)
    cuts: Any = _joined(tuple(data.train), data.batch.seed, data.utterances)
    if data.resident:
        audio = load_resident(open_cuts(cuts) if isinstance(cuts, str) else cuts, frontend.rate, fabric.device)
        batch = data.batch
        source: Any = ResidentSource(
            audio, tokenizer, frontend, batch.seconds, data.noise, batch.masks, batch.longest,
            data.easy_first, fabric.device.type == "cuda", most=batch.utterances, seed=batch.seed,
            shuffle=batch.shuffle, **ranks,
        )  # fmt: skip
    else:
        source = Batches(cuts, tokenizer, frontend, data.batch, device=fabric.device, **ranks)
    if data.held_out is None:
        return source, None, []
    held = Batches(data.held_out, tokenizer, frontend, plain, device=fabric.device, **ranks)
    transcripts = [cut_text(cut) for cut in open_cuts(data.held_out)]
    return source, lambda: held, [text for text in transcripts if text]


def _joined(paths: Sequence[str], seed: int, utterances: int) -> Any:
    """One path as it is (shards are streamed); several, or a part of one, as a list of cuts."""
    if len(paths) == 1 and not utterances:
        return paths[0]
    cuts = (cut for path in paths for cut in open_cuts(path, seed=seed))
    return list(islice(cuts, utterances or None))


def _perplexity(
    monitor: MonitorOptions, tokenizer: SentencePieceTokenizer, transcripts: list[str], device: Any
) -> Callable[[Any], dict[str, float]]:
    lines = Path(monitor.text).read_text().splitlines() if monitor.text else transcripts
    sentences = [tokenizer.encode(line) for line in lines if line.strip()][: monitor.sentences]
    if not sentences:
        raise BadInputError("loop.ilm_every needs text: give monitor.text, or data.held_out with transcripts")
    beside: dict[str, float] = {}
    if monitor.source_lm:
        lm = load_checkpoint(monitor.source_lm, "lm", device).model
        check_same_vocabulary(tokenizer.tokens, lm.tokens, "model", "source LM")
        beside = {"source_lm_ppl": internal_lm_perplexity(lm, sentences)}
    return lambda model: {"ilm_ppl": internal_lm_perplexity(model, sentences), **beside}


def run_lm(
    out: Path,
    data: TextData,
    preset: str,
    changes: dict[str, Any],
    loop: LoopOptions,
    optimiser: OptimiserOptions,
    warm_start: WarmStart,
    lm: LmOptions,
    resume: bool = False,
) -> Progress:
    """Trains a language model; it lies in `out` when it ends."""
    if not data.train:
        raise BadInputError("data.train must name a token file; make one with: ilme text tokenize")
    fabric = make_fabric(loop.precision)
    text = TokenFile(data.train)
    held = TokenFile(data.held_out) if data.held_out else None
    if held is not None:
        check_same_vocabulary(text.inventory, held.inventory, "training text", "held-out text")
    tokenizer = SentencePieceTokenizer.from_json(text.tokenizer) if text.tokenizer else None
    torch.manual_seed(loop.seed)
    config = network_config("lm", preset, changes)
    model = models.build("lm", config, text.inventory)
    counts = _counts(text, text.inventory) if lm.loss == "nce" else None
    objective = LmObjective(model, lm, counts)
    objective.begin()
    start_from(model, warm_start)
    ranks = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    source = TextSource(text, data.tokens, data.longest, seed=data.seed, **ranks)
    held_out = (lambda: TextSource(held, data.tokens, data.longest, shuffle=False, **ranks)) if held else None
    _write_config(out, fabric, kind="lm", preset=preset, network=config_to_json(config), data=asdict(data),
                  loop=asdict(loop), optimiser=asdict(optimiser), warm_start=asdict(warm_start),
                  lm=asdict(lm))  # fmt: skip
    trainer = Trainer(
        out, objective, source, held_out, loop, optimiser, lambda m: save_model(out, m, tokenizer), None, fabric
    )
    return trainer.run(resume)


def _counts(text: TokenFile, inventory: Tokens) -> torch.Tensor:
    """How often each id occurs, in constant memory."""
    counts = np.zeros(len(inventory), dtype=np.int64)
    for start in range(0, len(text.ids), 1 << 22):
        counts += np.bincount(text.ids[start : start + (1 << 22)], minlength=len(inventory))
    return torch.from_numpy(counts)


def _write_config(out: Path, fabric: Any, **parts: Any) -> None:
    """Everything that decided this run, beside its results."""
    if fabric.is_global_zero:
        write_json(out / "config.json", parts)
