"""Runs every Triton kernel against the plain path; a program of its own, since Triton reads its mode when imported."""

from __future__ import annotations

import sys

import torch

from ilme.losses import cross_entropy, rnnt
from ilme.models.energies import location_energies
from tests.losses.transducer_oracles import loss_and_gradients, plain_loss, random_case, relative_error


def check_transducer(device: str) -> None:
    for U, activation, hat in ((5, "tanh", False), (3, "relu", False), (0, "tanh", False), (5, "tanh", True)):
        case = random_case(B=3, T=9, U=U, V=13, J=24, seed=U, blank=2, activation=activation, factorised=hat)
        weights = torch.tensor([1.0, -0.3, 2.5 if U else 0.0], dtype=torch.float64)
        wanted = loss_and_gradients(plain_loss(case), case, weights)
        for dtype, bar in ((torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 2e-2)):
            ours = case.to(device, torch.float32)
            plan = rnnt.TilePlan(2, activation, dtype, rnnt.SKIP_BELOW[dtype], 17, True, hat)
            loss = rnnt._RnntLoss.apply(plan, *ours.leaves, ours.labels, ours.f_lengths, ours.label_lengths)
            found = loss_and_gradients(loss, ours, weights)
            errors = [relative_error(a, b) for a, b in zip(found, wanted, strict=True)]
            assert all(e < bar for e in errors), (dtype, errors)


def check_cross_entropy(device: str) -> None:
    for smoothing in (0.0, 0.1):
        for V in (13, 5000):
            z, y = torch.randn(5, V, device=device), torch.randint(0, V, (5,), device=device)
            fused = cross_entropy._fused(z.clone(), y, smoothing, True)
            plain = cross_entropy._plain(z.clone(), y, smoothing, True)
            torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)


def check_attention(device: str) -> None:
    shapes = ((2, 45, 100), (2, 100), (2, 45, 5), (100, 5), (100,))
    for dtype, bar in ((torch.float32, 1e-3), (torch.float64, 1e-10), (torch.float16, 0.3)):
        inputs = [torch.randn(*s, device=device).to(dtype).requires_grad_() for s in shapes]
        beam = [inputs[0], *(torch.randn(6, *s[1:], device=device).to(dtype) for s in shapes[1:3]), *inputs[3:]]
        found, wanted = (
            [energies := location_energies(*inputs, fused=fused), *torch.autograd.grad(energies.square().sum(), inputs)]
            for fused in (True, False)
        )
        torch.testing.assert_close(found, wanted, rtol=bar, atol=bar)
        with torch.no_grad():
            found, wanted = ([location_energies(*beam, fused=fused)] for fused in (True, False))
        torch.testing.assert_close(found, wanted, rtol=bar, atol=bar)
        assert found[0].dtype == torch.promote_types(dtype, torch.float32)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")  # the plain path's products, whatever the environment asks for
    (where,) = sys.argv[1:]  # cuda, or cpu where Triton interprets
    check_transducer(where)
    check_cross_entropy(where)
    check_attention(where)
    print("kernels agree")
