"""Compiles every Triton kernel for a GPU that need not be there, in every number format that the callers use.

Kernels are called as they always are, with tensors on the CPU; in place of a launch, Triton's own compiler is run with
what it would be given. What the kernels would have written is not there, so no number is looked at. Prints the name of
each kernel and the number formats of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ilme.losses import cross_entropy, rnnt, rnnt_triton
from ilme.models.energies import location_energies
from ilme.search.recorded import Machine
from ilme.search.transducer import TransducerOptions
from tests.search.recorded_check import small_search

CAPABILITY = 90  # H100 and H200; what differs between GPUs is not what the sources can get wrong


class AbsentDevice:
    """What Triton asks of a driver when it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


def compile_in_place_of_launch(kernel: JITFunction, grid: Any) -> Callable[..., None]:
    def compiled(*arguments: Any, **options: Any) -> None:
        made = kernel.run(*arguments, grid=grid, warmup=True, **options)
        assert made is not None and "cubin" in made.asm
        formats = [str(a.dtype).removeprefix("torch.") for a in arguments if isinstance(a, torch.Tensor)]
        print(kernel.fn.__name__, *formats)

    return compiled


def compile_transducer(dtype: torch.dtype, activation: str, J: int, factorised: bool = False) -> None:
    B, T, U, V = 2, 4, 3, 13
    lengths = torch.tensor([T, T - 1]), torch.tensor([U, U - 1])
    given = (torch.randn(B, T, J), torch.randn(B, U + 1, J), torch.randn(V, J), torch.randn(V))
    terms = rnnt.Terms(*given, torch.randint(1, V, (B, U)), *lengths)
    tiles = rnnt_triton.TritonTiles(terms, rnnt.TilePlan(0, activation, dtype, 0.0, 17, True, factorised))
    cells = torch.arange(B * T * (U + 1))
    lse, blank, label = tiles.forward(cells)
    _, alpha, shifts = rnnt_triton.forward_scores(blank, label, *lengths)
    tiles.backward(cells, lse, *rnnt_triton.arc_posteriors(blank, label, alpha, shifts, *lengths))


def compile_cross_entropy(dtype: torch.dtype, V: int) -> None:
    for wanted in (True, False):
        cross_entropy._fused(torch.randn(3, V).to(dtype), torch.randint(0, V, (3,)), 0.1, wanted)


def compile_attention(dtype: torch.dtype, F: int) -> None:
    B, T, A = 2, 45, 100
    shapes = ((B, T, A), (B, A), (B, T, F), (A, F), (A,))
    inputs = [torch.randn(*s).to(dtype).requires_grad_() for s in shapes]
    torch.autograd.grad(location_energies(*inputs, fused=True).sum(), inputs)
    with torch.no_grad():  # a beam
        location_energies(
            inputs[0], *(torch.randn(3 * B, *s[1:]).to(dtype) for s in shapes[1:3]), *inputs[3:], fused=True
        )


@torch.no_grad()
def compile_search(dtype: torch.dtype, aware: bool = False) -> None:
    machine = Machine(small_search(dtype, TransducerOptions(beam=25, blank_aware=aware)), 3)
    machine.reset(None)
    machine.f = torch.randn(3, 128, 6).to(dtype)
    for part in ("frame", "grow", "extend", "end"):
        machine.executor(part, lambda part=part: getattr(machine, f"_{part}")(32))


if __name__ == "__main__":
    driver.set_active(AbsentDevice())
    JITFunction.__getitem__ = compile_in_place_of_launch
    for format in (torch.float32, torch.float16, torch.bfloat16):
        compile_transducer(format, "tanh", 24)
        compile_transducer(format, "tanh", 24, factorised=True)
        compile_cross_entropy(format, 5000)
    compile_transducer(torch.float32, "relu", 1)  # sizes of 1 are constants to the compiler
    compile_cross_entropy(torch.float32, 1)
    for format in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        compile_attention(format, 5)
        compile_search(format)
    compile_search(torch.float32, aware=True)
    compile_attention(torch.float32, 1)
