"""An LSTM-LM over Whisper's tokens in a few minutes of one GPU: as good as the clock allows.

python -m benchmarks.whisper_text --model tiny.en.pt --text novels.tar.xz --exclude librispeech-dev-clean --out novels
python -m benchmarks.whisper_lm train --text novels --out out/whisper-lm --minutes 2.2

As `ilme train lm --loop.budget MINUTES`, with the options of that one run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from ilme import models
from ilme.data.tokenfile import TokenFile
from ilme.models.checkpoint import save_model
from ilme.models.lstm_lm import LSTMLMConfig
from ilme.train.loop import Trainer, make_fabric
from ilme.train.objectives import LmObjective
from ilme.train.options import LmOptions, LoopOptions, OptimiserOptions
from ilme.train.sources import TextSource


def train(args: argparse.Namespace) -> None:
    text, held = (TokenFile(args.text / f"{name}.tokens") for name in ("train", "valid"))
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    fabric = make_fabric("auto")
    config = LSTMLMConfig(args.embedding, args.hidden, args.layers, args.dropout)
    model = models.build("lm", config, text.inventory)
    loop = LoopOptions(
        steps=args.steps, budget=args.minutes, evaluate_every=args.steps, save_every=args.steps,
        log_every=100, tensorboard=False, seed=args.seed,
    )  # fmt: skip
    rates = OptimiserOptions(rate=args.rate, warmup=args.warmup, final=0.01, weight_decay=1e-3, clip=1.0)
    source = TextSource(text, args.tokens, args.longest, seed=args.seed)
    trainer = Trainer(
        args.out,
        LmObjective(model, LmOptions()),
        source,
        lambda: TextSource(held, args.tokens, args.longest, shuffle=False),
        loop,
        rates,
        lambda trained: save_model(args.out, trained, None),
        None,
        fabric,
    )
    progress = trainer.run()
    seen = source.epoch + source.position / max(1, source.count / args.tokens)
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": progress.step,
        "epochs": round(seen, 2),
        "seconds": round(progress.seconds, 1),
        "perplexity per token": None if progress.best is None else round(math.exp(progress.best), 2),
    }
    print(json.dumps(found))
    (args.out / "trained.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train",))
    parser.add_argument("--text", type=Path, required=True, help="folder of train.tokens and valid.tokens")
    parser.add_argument("--out", type=Path, required=True, help="folder of the LM")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=20_000, help="more than the time allows")
    parser.add_argument("--tokens", type=int, default=24_576, help="tokens of a batch")
    parser.add_argument("--longest", type=int, default=160)
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
