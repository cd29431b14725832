"""Does noise-contrastive estimation learn as fast as cross-entropy, and where should its output layer begin?

    ilme study configs/study/paper-right.yaml --only text tokenizer
    python -m experiments.nce_start out/study/paper-right --json docs/results/data/nce-start.json

The tiny LSTM-LM over the study's 4,000 word pieces reads so many batches of 2,048 tokens of the novels with each loss,
from the same weights in the same order: cross-entropy, NCE from a fresh output layer (p = 1/V), and NCE from one that
begins at the unigram (`NoiseContrastive.begin_from`). Held-out loss is cross-entropy for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from benchmarks.timing import publish

from ilme import models
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.study.texts import read_lines
from ilme.train.objectives import LmObjective
from ilme.train.options import LmOptions
from ilme.train.sources import TextSource

TOKENS = 2048  # of a batch
WARMUP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a study's folder with text and tokenizer")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=100, help="steps between two looks at the held-out text")
    parser.add_argument("--rate", type=float, default=0.006)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = SentencePieceTokenizer.load(args.study / "tokenizer" / "bpe.model").for_role("lm")
    read, held = (
        tokenizer.encode_many(read_lines(args.study / "text" / f"target-{part}.txt")) for part in ("train", "held-out")
    )
    counts = np.bincount(np.fromiter(chain.from_iterable(read), dtype=np.int64), minlength=len(tokenizer))
    noise = LmOptions(loss="nce", noise_samples=args.samples)

    def objective(options: LmOptions, begins: bool = False) -> LmObjective:
        torch.manual_seed(0)
        network = models.build("lm", models.preset("lm", "tiny"), tokenizer.tokens)
        made = LmObjective(network, options, torch.from_numpy(counts))
        if begins:
            made.begin()
        return made

    ways: dict[str, Callable[[], LmObjective]] = {
        "cross-entropy": lambda: objective(LmOptions()),
        "NCE, from 1/V": lambda: objective(noise),
        "NCE, from the unigram": lambda: objective(noise, begins=True),
    }
    found = {name: learned(make(), read, held, args) for name, make in ways.items()}
    publish({"tokens a batch": TOKENS, "held-out loss per token by step": found}, args.json, seed=1)


def learned(
    objective: LmObjective, read: list[list[int]], held: list[list[int]], args: argparse.Namespace
) -> dict[int, float]:
    optimiser = torch.optim.AdamW(objective.model.parameters(), lr=args.rate, betas=(0.9, 0.98))
    batches = iter(TextSource(read, tokens=TOKENS, seed=1))
    looks: dict[int, float] = {}
    torch.manual_seed(1)
    for step in range(1, args.steps + 1):
        objective.train()
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min(1.0, step / WARMUP)
        batch = next(batches)
        loss = objective(*objective.inputs(batch)) / objective.units(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % args.every == 0:
            looks[step] = round(held_out(objective, held), 4)
    return looks


@torch.no_grad()
def held_out(objective: LmObjective, held: list[list[int]]) -> float:
    objective.eval()
    total = units = 0.0
    for batch in TextSource(held, tokens=TOKENS, shuffle=False):
        total += float(objective(*objective.inputs(batch)))
        units += float(objective.units(batch))
    return total / units


if __name__ == "__main__":
    main()
