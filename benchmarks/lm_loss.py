"""Tokens a second of a language model's output layer and loss, forward and backward: NCE, tiled and plain
cross-entropy.

python -m benchmarks.lm_loss                          V = 4,000 and 50,000, D = 512, k = 1,024
python -m benchmarks.lm_loss --device cpu --tokens 2048
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ilme.losses.cross_entropy import linear_cross_entropy
from ilme.losses.nce import NoiseContrastive, unigram_noise


def plain(h: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, weight, bias).float(), targets, reduction="sum")


def noise_contrastive(nce: NoiseContrastive, h: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return nce(h.to(torch.bfloat16) if h.is_cuda else h, weight, bias, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[4000, 50_000])
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    results = []
    for V in args.vocabularies:
        torch.manual_seed(0)
        h = torch.randn(args.tokens, args.width, device=args.device, requires_grad=True)
        weight = (torch.randn(V, args.width, device=args.device) / args.width**0.5).requires_grad_()
        bias = torch.zeros(V, device=args.device, requires_grad=True)
        targets = torch.randint(0, V, (args.tokens,), device=args.device)
        nce = NoiseContrastive(unigram_noise(torch.rand(V)), args.samples).to(args.device)
        losses = {
            f"nce, k = {args.samples}": partial(noise_contrastive, nce),
            "cross-entropy, tiled": linear_cross_entropy,
            "cross-entropy, plain": plain,
        }
        for name, loss in losses.items():
            times = []
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            for _ in range(args.repeats + 1):
                start = time.perf_counter()
                with torch.autocast(args.device, torch.bfloat16, enabled=cuda):
                    value = loss(h, weight, bias, targets)
                torch.autograd.grad(value, [h, weight, bias])
                if cuda:
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
            seconds = min(times[1:])
            peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
            results.append({"V": V, "loss": name, "tokens_per_second": args.tokens / seconds, "gib": peak})
            print(f"V={V:<6} {name:<22} {args.tokens / seconds / 1e6:9.4f} M tokens/s {peak:7.2f} GiB", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
