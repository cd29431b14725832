"""Twenty synthetic utterances, tiny networks, and a run of them: used by the tests, and by the processes
they start.

python tests/train/tiny.py OUT [resume] [key=value …]     keys: kind, steps, accumulate, pause, average, …
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ilme import models
from ilme.models.checkpoint import save_model
from ilme.testing import numbered_tokens
from ilme.train.loop import Trainer, make_fabric
from ilme.train.objectives import AedObjective, LmObjective, Objective, RnntObjective
from ilme.train.options import AedOptions, LoopOptions, OptimiserOptions, RnntOptions
from ilme.train.sources import MemorySource, TextSource

V, WIDTH = 12, 240
torch.set_num_threads(1)


def utterances(count: int = 20, seed: int = 0) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Each label is a vector that lasts 2–4 frames; silence lies between; a little noise on all."""
    r = torch.Generator().manual_seed(seed)
    sounds = torch.randn(V, WIDTH, generator=torch.Generator().manual_seed(99))
    features, labels = [], []
    for _ in range(count):
        ids = torch.randint(2, V, (int(torch.randint(2, 6, (), generator=r)),), generator=r).tolist()
        parts = []
        for label in ids:
            parts.append(sounds[label].expand(int(torch.randint(2, 5, (), generator=r)), -1))
            parts.append(torch.zeros(1, WIDTH))
        x = torch.cat(parts)
        features.append(x + 0.1 * torch.randn(x.shape, generator=r))
        labels.append(ids)
    return features, labels


def make_objective(kind: str, listen: int = 0) -> Objective:
    """The network of a kind with its loss; `hat` is a factorised transducer."""
    torch.manual_seed(0)
    if kind == "hat":
        config = replace(models.preset("rnnt", "tiny"), hat=True)
        return RnntObjective(models.build("rnnt", config, numbered_tokens(V, "transducer")))
    tokens = numbered_tokens(V, "transducer" if kind == "rnnt" else "attention")
    config, ctc = models.preset(kind, "tiny"), 0.3 if listen else 0.0
    model = models.build(kind, replace(config, ctc=True) if listen else config, tokens)
    if kind == "rnnt":
        return RnntObjective(model, RnntOptions(ctc=ctc, listen=listen))
    return AedObjective(model, AedOptions(0.0, ctc=ctc, listen=listen)) if kind == "aed" else LmObjective(model)


def make_trainer(
    out: Path,
    kind: str = "rnnt",
    budget: float = 60,
    rates: OptimiserOptions | None = None,
    listen: int = 0,
    **loop: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "steps": 30, "save_every": 7, "evaluate_every": 10, "log_every": 5, "tensorboard": False, "precision": "fp32"
    }  # fmt: skip
    options = LoopOptions(**{**settings, **loop})
    fabric = make_fabric(options.precision, listen > 0)
    ranks = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    features, labels = utterances()
    source: Any
    held: Any
    if kind == "lm":
        source, held = TextSource(labels, tokens=64, **ranks), TextSource(labels, tokens=64, shuffle=False)
    else:
        source = MemorySource(features, labels, budget, **ranks)
        held = MemorySource(features, labels, budget, shuffle=False)
    whole = [batch for i, batch in enumerate(held) if i % fabric.world_size == fabric.global_rank]
    rates = rates or OptimiserOptions(rate=3e-3, warmup=10)
    objective = make_objective(kind, listen)
    return Trainer(out, objective, source, lambda: whole, options, rates, lambda m: save_model(out, m), fabric=fabric)


def main() -> None:
    out, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest if "=" in word)
    pause, kind = float(given.pop("pause", 0)), given.pop("kind", "rnnt")
    trainer = make_trainer(Path(out), kind, **{k: float(v) if "." in v else int(v) for k, v in given.items()})
    if pause:  # slow down, so that a signal finds the run at work
        plain = trainer._step

        def slow(batches: Any) -> Any:
            time.sleep(pause)
            return plain(batches)

        trainer._step = slow  # type: ignore[method-assign]
    progress = trainer.run(resume="resume" in rest)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"done {progress.step}")


if __name__ == "__main__":
    main()
