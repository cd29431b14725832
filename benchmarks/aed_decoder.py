"""The attention decoder's training loop alone, forward and backward: with and without the fused attention
energies.

    python -m benchmarks.aed_decoder --batches 64 256
    python -m benchmarks.aed_decoder --batches 256 --shapes 32,64,4 64,64,8      try other block shapes

`host` is the time until the last kernel was launched: where it equals the whole time, Python is the limit.
`graph` is the same loop replayed as a CUDA graph, which real batches, each of another shape, cannot be: the
bound of what launches cost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from ilme import models
from ilme.losses import aed
from ilme.losses.aed import decoder_outputs
from ilme.models import energies
from ilme.models.aed import AED
from ilme.testing import numbered_tokens


def make(args: argparse.Namespace, batch: int) -> tuple[AED, tuple[Any, ...], torch.Tensor]:
    torch.manual_seed(0)
    model: AED = models.build("aed", models.preset("aed", args.preset), numbered_tokens(4000, "attention"))
    model = model.to(args.device).train()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    E, A = model.config.encoder.outputs, model.config.attention
    h = torch.randn(batch, args.frames, E, device=args.device).to(dtype)
    keys = torch.randn(batch, args.frames, A, device=args.device).to(dtype)
    memory = (h.requires_grad_(), keys.requires_grad_(), torch.zeros(batch, args.frames, device=args.device))
    return model, memory, torch.randint(2, 4000, (batch, args.labels), device=args.device)


def loop(args: argparse.Namespace, model: AED, memory: Any, labels: torch.Tensor, recompute: bool = False) -> None:
    with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
        out, _ = decoder_outputs(model, memory, labels, None, recompute)
    out.float().square().mean().backward()
    for tensor in (*memory, *model.parameters()):
        tensor.grad = None


def measure(args: argparse.Namespace, step: Callable[[], None]) -> tuple[float, float, float]:
    """Milliseconds in all, milliseconds of the host, peak GiB."""
    cuda = args.device == "cuda"
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    for _ in range(2):
        step()
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    whole, host = [], []
    for _ in range(args.repeats):
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
        wait()
        whole.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return 1000 * min(whole), 1000 * min(host), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--frames", type=int, default=334)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=[], help="frames,units,warps of the kernels' blocks to try")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    available = aed.kernels_run_on
    for batch in args.batches:
        model, memory, labels = make(args, batch)

        def report(name: str, step: Callable[[], None], batch: int = batch) -> None:
            ms, host, gib = measure(args, step)
            print(f"B={batch:<4} {name:<24} {ms:8.1f} ms  host {host:8.1f} ms  {gib:6.2f} GiB", flush=True)

        plainly = (args, model, memory, labels)
        aed.kernels_run_on = lambda device: False
        report("plain", lambda a=plainly: loop(*a))
        report("plain, recomputed", lambda a=plainly: loop(*a, recompute=True))
        aed.kernels_run_on = available
        if args.device != "cuda":
            continue
        default = (energies.FRAMES, energies.UNITS, energies.WARPS)
        for shape in [",".join(map(str, default)), *args.shapes]:
            energies.FRAMES, energies.UNITS, energies.WARPS = map(int, shape.split(","))
            report(f"fused, blocks {shape}", lambda a=plainly: loop(*a))
        energies.FRAMES, energies.UNITS, energies.WARPS = default
        graph = torch.cuda.CUDAGraph()
        loop(*plainly)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            loop(*plainly)
        report("fused, as a CUDA graph", graph.replay)
        if args.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                loop(*plainly)
                torch.cuda.synchronize()
            table = profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=16, max_name_column_width=70)
            print("\n".join(line[:72] + line[-60:] for line in table.splitlines()))


if __name__ == "__main__":
    main()
