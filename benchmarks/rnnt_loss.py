"""Time and memory of the transducer loss, joint and output layer included, forward and backward.

    python -m benchmarks.rnnt_loss        on a CUDA device: the paper's shape, B = 32 and 256
    python -m benchmarks.rnnt_loss --device cpu --batch 8 --frames 200 --labels 40 --outputs 1000 --width 512

On a CUDA device torchaudio's `rnnt_loss`, with the same joint and output layer and 16-bit logits, runs in
the same process, and so do the joint's own matrix products alone (the floor). On a CPU the comparison is the
plain way: logits of all cells, log-softmax, and the lattice; and fast_rnnt's full loss where that is
installed. Prints one table and, with --json, writes every number.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import forget_peak, peak_since_mb
from ilme.losses.rnnt import Terms, rnnt_loss
from ilme.runtime.lattice import forward_scores


def make_inputs(B: int, T: int, U: int, V: int, J: int, device: str, dtype: torch.dtype, peaked: bool) -> Terms:
    """Random terms, or (peaked) terms that spell the labels at even distances, as a trained model's do."""
    torch.manual_seed(0)
    labels = torch.randint(1, V, (B, U), device=device)
    weight = torch.randn(V, J, device=device) / J**0.5
    f = torch.randn(B, T, J, device=device)
    g = torch.randn(B, U + 1, J, device=device)
    if peaked:
        spoken = torch.zeros(B, T, dtype=torch.long, device=device)
        frames = torch.linspace(2, T - 3, U, device=device).long()
        spoken[:, frames] = labels
        f = 0.3 * f + 12.0 * weight[spoken]
        g = 0.1 * g
    bias = torch.zeros(V, device=device)
    sizes = (torch.full((B,), T, device=device), torch.full((B,), U, device=device))
    learned = [x.to(dtype).requires_grad_() for x in (f, g)] + [x.requires_grad_() for x in (weight, bias)]
    return Terms(*learned, labels, *sizes)


def leaves(x: Terms) -> tuple[Tensor, ...]:
    """f, g, weight and bias: those that have a gradient."""
    return x[:4]


def tiled(x: Terms, dtype: torch.dtype | None, skip_below: float | None, tile: int | None = None) -> Tensor:
    return rnnt_loss(*x, dtype=dtype, skip_below=skip_below, tile_cells=tile).sum()


def stored(x: Terms, dtype: torch.dtype) -> Tensor:
    """torchaudio's loss on the logits of all cells in 16 bits."""
    from torchaudio.functional import rnnt_loss as peer

    h = torch.tanh(x.f[:, :, None] + x.g[:, None]).to(dtype)
    logits = torch.nn.functional.linear(h, x.weight.to(dtype), x.bias.to(dtype))
    sizes = (x.f_lengths.int(), x.label_lengths.int())
    return peer(logits, x.labels.int(), *sizes, blank=0, reduction="sum")


def plain(x: Terms) -> Tensor:
    """Logits of all cells, log-softmax, and the lattice with autograd's own gradient (its posteriors)."""
    h = torch.tanh(x.f[:, :, None] + x.g[:, None])
    scores = torch.nn.functional.linear(h, x.weight, x.bias).log_softmax(-1)
    blank = scores[..., 0]
    index = torch.cat([x.labels, x.labels[:, -1:]], 1)[:, None, :, None].expand(-1, blank.shape[1], -1, 1)
    label = scores.gather(-1, index).squeeze(-1)
    return -_Lattice.apply(blank, label, x.f_lengths, x.label_lengths).sum()


def fast_rnnt_full(x: Terms) -> Tensor:
    """The full (unpruned) loss of fast_rnnt on the logits of all cells."""
    from fast_rnnt import rnnt_loss as peer

    logits = torch.nn.functional.linear(torch.tanh(x.f[:, :, None] + x.g[:, None]), x.weight, x.bias)
    boundary = torch.zeros(len(x.labels), 4, dtype=torch.int64)
    boundary[:, 2], boundary[:, 3] = x.label_lengths, x.f_lengths
    return peer(logits, x.labels, 0, boundary=boundary, reduction="sum")


class _Lattice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blank, label, f_lengths, label_lengths):
        total, alpha = forward_scores(blank, label, f_lengths, label_lengths)
        ctx.save_for_backward(blank, label, alpha, f_lengths, label_lengths)
        return total

    @staticmethod
    def backward(ctx, grad):
        from ilme.runtime.lattice import arc_posteriors

        arcs = arc_posteriors(*ctx.saved_tensors)
        return (*(a.float() * grad[:, None, None].float() for a in arcs), None, None)


def products(x: Terms, dtype: torch.dtype, cells: int, chunk: int) -> Callable[[], None]:
    """The three products that any loss of this network needs: W h, Wᵀ dz and dzᵀ h."""
    J, V = x.weight.shape[1], len(x.weight)
    h, z = (
        torch.randn(chunk, J, device=x.f.device).to(dtype),
        torch.randn(chunk, V, device=x.f.device).to(dtype),
    )
    w = x.weight.detach().to(dtype)

    def run() -> None:
        for _ in range(-(-cells // chunk)):
            torch.mm(h, w.t())
            torch.mm(z, w)
            torch.mm(z.t(), h)

    return run


def measure_cuda(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds, and peak GiB above what was allocated before."""
    step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2], (torch.cuda.max_memory_allocated() - before) / 2**30


def measure_cpu(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least CPU milliseconds, and peak resident GiB above what was there before."""
    step()
    gc.collect()
    before = forget_peak()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        times.append(1000 * (time.process_time() - start))
    return min(times), (peak_since_mb() - before) / 1024


def gradient_step(loss: Callable[[], Tensor], x: Terms) -> Callable[[], float]:
    def step() -> float:
        value = loss()
        torch.autograd.grad(value, leaves(x))
        return float(value.detach())

    return step


def check(device: str) -> list[dict[str, object]]:
    """Relative errors against the float64 path on a ragged batch, for each number format."""
    rows = []
    for peaked in (False, True):
        exact = make_inputs(3, 61, 13, 203, 96, device, torch.float64, peaked)
        weight, bias = (w.detach().double().requires_grad_() for w in (exact.weight, exact.bias))
        exact = exact._replace(weight=weight, bias=bias)
        exact.f_lengths[1], exact.label_lengths[1], exact.f_lengths[2], exact.label_lengths[2] = 40, 13, 61, 5
        wanted = tiled(exact, None, 0.0)
        wanted_grads = torch.autograd.grad(wanted, leaves(exact))
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            if dtype == torch.float16 and device == "cpu":
                continue
            ours = Terms(*(v.detach().float().requires_grad_() for v in leaves(exact)), *exact[4:])
            loss = tiled(ours, dtype, None, tile=300)
            grads = torch.autograd.grad(loss, leaves(ours))
            errors = {"loss": abs(float(loss.detach() / wanted.detach()) - 1)}
            for name, a, b in zip(("f", "g", "weight", "bias"), grads, wanted_grads, strict=True):
                errors[name] = float((a.double() - b).norm() / b.norm())
            again = torch.autograd.grad(tiled(ours, dtype, None, tile=300), leaves(ours))
            same = all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
            rows.append({"dtype": str(dtype), "peaked": peaked, "errors": errors, "two_runs_bit_equal": same})
    return rows


def print_kernels(args: argparse.Namespace) -> None:
    """Device time by kernel, of one step on random input with every cell computed."""
    sizes = (args.batch[0], args.frames, args.labels, args.outputs, args.width)
    x = make_inputs(*sizes, args.device, torch.float16, peaked=False)
    step = gradient_step(lambda: tiled(x, torch.float16, 0.0), x)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=14, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--frames", type=int, default=334)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--outputs", type=int, default=4000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tiles", type=int, nargs="*", default=[], help="also time these tile sizes, in cells")
    parser.add_argument("--profile", action="store_true", help="also print the kernels of one step (CUDA)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    half = torch.float16 if cuda else None
    measure = measure_cuda if cuda else measure_cpu
    torch.set_num_threads(1)

    checks = check(args.device)
    for row in checks:
        errors = "  ".join(f"{k} {v:.1e}" for k, v in row["errors"].items())
        again = "equal bits again" if row["two_runs_bit_equal"] else "OTHER BITS in a second run"
        print(f"check {row['dtype']:>15} peaked={row['peaked']!s:5} {errors}  {again}")

    results = []

    def report(B: int, name: str, step: Callable[[], object]) -> None:
        try:
            value = step()
            ms, gib = measure(step, args.repeats)
        except torch.cuda.OutOfMemoryError:
            print(f"B={B:<4} {name:<46} does not fit")
            results.append({"batch": B, "name": name, "ms": None, "gib": None})
            return
        results.append({"batch": B, "name": name, "ms": ms, "gib": gib, "value": value})
        found = "" if value is None else f"loss {value:.2f}"
        print(f"B={B:<4} {name:<46} {ms:9.1f} ms {gib:8.3f} GiB  {found}", flush=True)

    for B in args.batch:
        for peaked in (False, True):
            dtype = torch.float16 if cuda else torch.float32
            x = make_inputs(B, args.frames, args.labels, args.outputs, args.width, args.device, dtype, peaked)
            kind = "peaked" if peaked else "random"
            report(B, f"tiled, {kind}", gradient_step(lambda x=x: tiled(x, half, None), x))
            report(B, f"tiled, {kind}, every cell", gradient_step(lambda x=x: tiled(x, half, 0.0), x))
            for tile in args.tiles:
                report(
                    B,
                    f"tiled, {kind}, tiles of {tile}",
                    gradient_step(lambda x=x, t=tile: tiled(x, half, None, t), x),
                )
            with torch.no_grad():
                report(B, f"tiled, {kind}, forward alone", lambda x=x: float(tiled(x, half, None)))
            if cuda and B <= 64:
                report(B, f"torchaudio, {kind}", gradient_step(lambda x=x: stored(x, torch.float16), x))
            elif not cuda:
                report(B, f"plain, {kind}", gradient_step(lambda x=x: plain(x), x))
                if importlib.util.find_spec("fast_rnnt"):
                    report(B, f"fast_rnnt, {kind}", gradient_step(lambda x=x: fast_rnnt_full(x), x))
            if not peaked:
                cells = B * args.frames * (args.labels + 1)
                report(B, "the joint's own products", products(x, dtype, cells, 16384 if cuda else 512))
            del x
    if args.profile:
        print_kernels(args)
    if args.json:
        args.json.write_text(
            json.dumps({"args": {**vars(args), "json": None}, "checks": checks, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
