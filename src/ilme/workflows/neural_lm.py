"""Neural LMs of a domain, trained in a given time by the loop of `ilme train lm`.

    lstm      an LSTM from random weights
    decoder   the model's own decoder, trained further (see `ilme.ilm.decoder_lm`)

The run's folder holds checkpoints, so that a run that was killed goes on where it was: the same call, again. The LM is
the one that predicted the held-out lines best.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ilme.errors import BadInputError
from ilme.ilm.decoder_lm import decoder_lm, save_decoder_lm
from ilme.lm.ngram import lm_tokens
from ilme.models.checkpoint import save_model
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.protocols import TokenScorer
from ilme.recogniser.loading import load_lm
from ilme.runtime.files import write_json
from ilme.train.loop import Trainer, make_fabric
from ilme.train.objectives import LmObjective
from ilme.train.options import LoopOptions, OptimiserOptions
from ilme.train.sources import TextSource

__all__ = ["NEURAL", "TrainedLM", "can_train", "lstm_config", "train_neural_lm"]

Say = Callable[[str], None]
FILE, DONE = "lm.safetensors", "done.json"
LONGEST = 160  # tokens of a line; a longer one is cut
LARGE_TEXT = 2_000_000  # tokens from which a wide LSTM is worth its time, on a GPU


@dataclass(frozen=True)
class Recipe:
    """How one kind of network is trained.

    Attributes:
        make: The network for a model, a device type and so many tokens of text.
        save: Writes the network, made for a model, to a file.
        rate: Peak learning rate.
        epochs: Most passes over the text; the time may allow fewer.
    """

    make: Callable[[Any, str, int], Any]
    save: Callable[[Path, Any, Any], Any]
    rate: float
    epochs: int


@dataclass(frozen=True)
class Pace:
    """Sizes that suit a device.

    Attributes:
        smallest, largest: Tokens of a batch.
        batches: Batches to which a small text is cut.
        evaluate: Most steps between two looks at the held-out lines.
    """

    smallest: int
    largest: int
    batches: int
    evaluate: int


PACES = {"cpu": Pace(256, 1024, 10, 20), "cuda": Pace(1024, 24_576, 50, 500)}


def lstm_config(device: str, tokens: int) -> LSTMLMConfig:
    """The LSTM for a device type and so many tokens of text: wide where both are large, else small."""
    if device != "cpu" and tokens >= LARGE_TEXT:
        return LSTMLMConfig(embedding=512, hidden=1536, layers=2, dropout=0.1)
    return LSTMLMConfig(embedding=256, hidden=512, layers=1, dropout=0.3)


def _lstm(host: Any, device: str, tokens: int) -> LSTMLM:
    return LSTMLM(lstm_config(device, tokens), lm_tokens(host.tokens))


NEURAL = {
    "decoder": Recipe(lambda host, *_: decoder_lm(host), save_decoder_lm, rate=2e-4, epochs=8),
    "lstm": Recipe(_lstm, lambda file, lm, _: save_model(file, lm), rate=2e-3, epochs=40),
}


@dataclass(frozen=True)
class TrainedLM:
    """What a training gave.

    Attributes:
        scorer: The LM.
        file: Where it is.
        about: Steps, epochs, seconds and perplexity, for the card.
    """

    scorer: TokenScorer
    file: Path
    about: dict[str, Any]


def can_train() -> bool:
    """Whether the extra `train` is installed."""
    return any(importlib.util.find_spec(name) for name in ("lightning_fabric", "lightning"))


def train_neural_lm(
    kind: str,
    host: Any,
    train: Sequence[Sequence[int]],
    held: Sequence[Sequence[int]],
    work: Path,
    minutes: float,
    seed: int,
    say: Say,
) -> TrainedLM:
    """Trains an LM for at most so many minutes, or goes on with what `work` holds of it.

    Args:
        kind: `lstm` or `decoder`.
        host: The model.
        train: Lines in the model's tokens.
        held: Lines that choose when to stop.
        work: The folder of this run alone.
        minutes: Most time, over all resumptions.
        seed: Of weights and order.
        say: Called with one line now and then: the step, the loss, the time left.
    """
    file, done = work / FILE, work / DONE
    if done.is_file() and file.is_file():
        say(f"{kind}: trained before, taken from {work}")
    else:
        write_json(done, _run(kind, host, train, held, work, minutes, seed, say))
    return TrainedLM(load_lm(file, host), file, json.loads(done.read_text(encoding="utf-8")))


def _run(
    kind: str,
    host: Any,
    train: Sequence[Sequence[int]],
    held: Sequence[Sequence[int]],
    work: Path,
    minutes: float,
    seed: int,
    say: Say,
) -> dict[str, Any]:
    if minutes <= 0:
        raise BadInputError(f"a training needs minutes, got {minutes}")
    recipe, device = NEURAL[kind], host.device
    pace = PACES["cpu" if device.type == "cpu" else "cuda"]
    fabric = make_fabric(device=str(device))
    tokens = sum(map(len, train)) + len(train)
    torch.manual_seed(seed)
    network = recipe.make(host, device.type, tokens)
    longest = min(LONGEST, getattr(host, "max_labels", LONGEST))
    batch = min(max(tokens // pace.batches, pace.smallest), pace.largest)
    source = TextSource(train, batch, longest, seed=seed)
    per_epoch = len(source.plan())
    every = min(per_epoch, pace.evaluate)
    steps = recipe.epochs * per_epoch
    loop = LoopOptions(
        steps=steps, budget=minutes, evaluate_every=every, save_every=every, patience=4, keep=1,
        log_every=max(1, every // 2), tensorboard=False, seed=seed,
    )  # fmt: skip
    rates = OptimiserOptions(rate=recipe.rate, warmup=min(20 if device.type == "cpu" else 200, steps // 10), clip=1.0)
    trainer = Trainer(
        work,
        LmObjective(network),
        source,
        lambda: TextSource(held, batch, longest, shuffle=False),
        loop,
        rates,
        lambda trained: recipe.save(work / FILE, trained, host),
        fabric=fabric,
        say=lambda line: say(f"{kind}: " + line.replace("add --resume", "run the same command again")),
    )
    progress = trainer.run(resume=True)
    return {
        "steps": progress.step,
        "epochs": round(source.epoch + source.position / per_epoch, 2),
        "seconds": round(progress.seconds, 1),
        "perplexity": None if progress.best is None else round(math.exp(progress.best), 3),
    }
