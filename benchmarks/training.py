"""Hours of audio a second of whole training steps at the paper's size: features, forward, backward,
clipping, AdamW.

    python -m benchmarks.training --kinds rnnt aed --batches 64 256 512
    python -m benchmarks.training --device cpu --preset tiny --kinds rnnt aed lm --batches 4 --seconds 2
    --labels 5

Audio is noise that lies on the device as int16 (`ilme.train.resident`); transcripts are random labels, 4 a
second, so the lattice of the transducer is as diffuse as it ever is. `encoder` is the encoder alone, forward
and backward: the ceiling of a step. For the AED the decoder's attention is timed with and without its fused
kernel.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ilme import models
from ilme.losses import aed as aed_loss_module
from ilme.testing import numbered_tokens
from ilme.train.alignment import align_lstms
from ilme.train.objectives import AedObjective, LmObjective, Objective, RnntObjective
from ilme.train.optimiser import make_optimiser
from ilme.train.options import AedOptions, OptimiserOptions
from ilme.train.resident import ResidentAudio, ResidentSource


class RandomTokenizer:
    """Labels that depend on the text's hash only, as many as the text has words."""

    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens

    def encode(self, text: str) -> list[int]:
        generator = torch.Generator().manual_seed(hash(text) % (1 << 31))
        return torch.randint(2, len(self.tokens), (len(text.split()),), generator=generator).tolist()

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def make_source(args: argparse.Namespace, batch: int, tokens: Any) -> ResidentSource:
    """Twice the batch in utterances of equal length."""
    n, size = 2 * batch, int(args.seconds * 16000)
    samples = torch.randint(-3000, 3000, (n * size,), dtype=torch.int16, device=args.device)
    text = " ".join(["word"] * args.labels)
    audio = ResidentAudio(samples, torch.arange(n + 1) * size, [str(i) for i in range(n)], [f"{text}"] * n)
    return ResidentSource(audio, RandomTokenizer(tokens), seconds=batch * args.seconds + 1, most=batch, shuffle=False)


def timed(args: argparse.Namespace, step: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a step, and peak GiB."""
    cuda = args.device == "cuda"
    for _ in range(args.warmup):
        step()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return sorted(times)[len(times) // 2], peak


def autocast(args: argparse.Namespace) -> Any:
    return torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda")


def training_step(args: argparse.Namespace, objective: Objective, optimiser: Any, batch: Callable[[], Any]) -> None:
    data = batch()
    with autocast(args):
        loss = objective(*objective.inputs(data)) / objective.units(data)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(objective.parameters(), 5.0)
    optimiser.step()
    optimiser.zero_grad()


def encoder_step(args: argparse.Namespace, model: Any, data: Any) -> None:
    with autocast(args):
        h, _ = model.encoder(data.features, data.feature_lengths)
    h.float().square().mean().backward()
    model.zero_grad()


def speech(args: argparse.Namespace, kind: str, batch: int, report: Callable[..., None]) -> None:
    torch.manual_seed(0)
    tokens = numbered_tokens(args.vocabulary, "transducer" if kind == "rnnt" else "attention")
    model = models.build(kind, models.preset(kind, args.preset), tokens).to(args.device).train()
    objective = RnntObjective(model) if kind == "rnnt" else AedObjective(model, AedOptions(sampling=0.0001))
    optimiser = make_optimiser(model, OptimiserOptions())
    source = make_source(args, batch, tokens)
    hours = batch * args.seconds / 3600
    stream = endless_batches(source)
    fixed = next(stream)
    report(kind, batch, "encoder", hours, lambda: encoder_step(args, model, fixed))
    if args.device == "cuda" and align_lstms(model):
        report(kind, batch, "encoder, aligned", hours, lambda: encoder_step(args, model, fixed))
    report(kind, batch, "features", hours, lambda: next(stream))
    report(kind, batch, "step", hours, lambda: training_step(args, objective, optimiser, lambda: next(stream)))
    if kind == "aed" and args.device == "cuda":
        plain = aed_loss_module.kernels_run_on
        aed_loss_module.kernels_run_on = lambda device: False
        report(kind, batch, "step, plain attention", hours,
               lambda: training_step(args, objective, optimiser, lambda: fixed))  # fmt: skip
        aed_loss_module.kernels_run_on = plain
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            training_step(args, objective, optimiser, lambda: fixed)
            torch.cuda.synchronize()
        print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=12, max_name_column_width=50))


def endless_batches(source: ResidentSource) -> Any:
    while True:
        yield from source


def language_model(args: argparse.Namespace, batch: int, report: Callable[..., None]) -> None:
    from ilme.train.sources import TextBatch

    tokens = numbered_tokens(args.vocabulary, "attention")
    model = models.build("lm", models.preset("lm", args.preset), tokens).to(args.device).train()
    objective, optimiser = LmObjective(model), make_optimiser(model, OptimiserOptions())
    labels = torch.randint(2, args.vocabulary, (batch, args.labels), device=args.device)
    data = TextBatch([], labels, torch.full((batch,), args.labels, device=args.device))
    tokens_each = batch * (args.labels + 1)
    report("lm", batch, "step", tokens_each / 1e6, lambda: training_step(args, objective, optimiser, lambda: data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kinds", nargs="+", default=["rnnt", "aed"], choices=["rnnt", "aed", "lm"])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print the kernels of one step of each (CUDA)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []

    def report(kind: str, batch: int, what: str, amount: float, step: Callable[[], object]) -> None:
        unit = "M tokens/s" if kind == "lm" else "h audio/s"
        try:
            seconds, peak = timed(args, step)
        except torch.cuda.OutOfMemoryError:
            print(f"{kind:<5} B={batch:<4} {what:<22} does not fit", flush=True)
            return
        results.append(
            {"kind": kind, "batch": batch, "what": what, "seconds": seconds, "gib": peak, "rate": amount / seconds}
        )
        rate = f"{amount / seconds:8.2f} {unit}"
        print(f"{kind:<5} B={batch:<4} {what:<22} {1000 * seconds:9.1f} ms {rate} {peak:7.2f} GiB", flush=True)

    for kind in args.kinds:
        for batch in args.batches:
            if kind == "lm":
                language_model(args, batch, report)
            else:
                speech(args, kind, batch, report)
            if args.device == "cuda":
                torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
