"""The tiled transducer loss against every alignment, a float64 recursion, finite differences, and itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.losses.rnnt import rnnt_loss

from .transducer_oracles import (
    brute_force_loss,
    loss_and_gradients,
    plain_loss,
    random_case,
    relative_error,
)


@settings(max_examples=25, deadline=None)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    U=st.integers(0, 3),
    V=st.integers(2, 5),
    blank=st.integers(0, 1),
    seed=st.integers(0, 10_000),
    factorised=st.booleans(),
)
def test_is_the_sum_over_every_alignment(
    B: int, T: int, U: int, V: int, blank: int, seed: int, factorised: bool
) -> None:
    case = random_case(B, T, U, V, J=4, seed=seed, blank=blank, factorised=factorised)
    loss = rnnt_loss(*case.arguments(), tile_cells=3, factorised=factorised)
    torch.testing.assert_close(loss.tolist(), brute_force_loss(case), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("factorised", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str
)
def test_loss_and_gradients_match_a_float64_recursion(
    dtype: torch.dtype, bar: float, activation: str, factorised: bool
) -> None:
    case = random_case(B=3, T=9, U=5, V=13, J=16, seed=3, blank=2, activation=activation, factorised=factorised)
    weights = torch.tensor([1.0, -0.3, 2.5], dtype=torch.float64)
    wanted = loss_and_gradients(plain_loss(case), case, weights)
    ours = case.to(dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    loss = rnnt_loss(*ours.arguments(), dtype=dtype, tile_cells=17, factorised=factorised)
    for name, found, want in zip(
        ("loss", "f", "g", "weight", "bias"), loss_and_gradients(loss, ours, weights), wanted, strict=True
    ):
        assert relative_error(found, want) < bar, name


@pytest.mark.parametrize("factorised", [False, True])
def test_float32_stays_exact_on_long_peaked_utterances(factorised: bool) -> None:
    case = random_case(B=2, T=90, U=25, V=40, J=24, seed=1, scale=6.0)
    exact = rnnt_loss(*case.arguments(), skip_below=0.0, factorised=factorised)
    wanted = loss_and_gradients(exact, case, torch.ones(2))
    ours = case.to(dtype=torch.float32)
    loss = rnnt_loss(*ours.arguments(), factorised=factorised)
    for found, want in zip(loss_and_gradients(loss, ours, torch.ones(2)), wanted, strict=True):
        assert relative_error(found, want) < 1e-4


@pytest.mark.parametrize("factorised", [False, True])
def test_gradients_match_finite_differences(factorised: bool) -> None:
    case = random_case(B=2, T=4, U=2, V=5, J=3, seed=5)

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return rnnt_loss(*leaves, case.labels, case.f_lengths, case.label_lengths, tile_cells=5, factorised=factorised)

    assert torch.autograd.gradcheck(loss, case.leaves)


def test_padding_changes_nothing() -> None:
    case = random_case(B=1, T=6, U=3, V=7, J=8, seed=2)
    wide = random_case(B=2, T=11, U=5, V=7, J=8, seed=9)
    with torch.no_grad():
        wide.f[1, :6], wide.g[1, :4] = case.f[0], case.g[0]
        wide.labels[1, :3] = case.labels[0]
        wide.f_lengths[1], wide.label_lengths[1] = 6, 3
        wide.weight.copy_(case.weight)
        wide.bias.copy_(case.bias)
    loss = rnnt_loss(*wide.arguments())
    torch.testing.assert_close(loss[1:], rnnt_loss(*case.arguments()), rtol=1e-12, atol=0)
    df, dg = torch.autograd.grad(loss[1], [wide.f, wide.g])
    assert not df[0].any() and not df[1, 6:].any() and not dg[0].any() and not dg[1, 4:].any()


def test_tile_size_changes_nothing() -> None:
    case = random_case(B=3, T=7, U=4, V=9, J=6, seed=4)
    wanted = loss_and_gradients(rnnt_loss(*case.arguments(), tile_cells=10_000), case, torch.ones(3))
    for size in (1, 8, 31):
        found = loss_and_gradients(rnnt_loss(*case.arguments(), tile_cells=size), case, torch.ones(3))
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


def test_leaving_out_cells_that_no_alignment_visits_stays_within_its_bound() -> None:
    case = random_case(B=2, T=30, U=12, V=11, J=8, seed=6, scale=8.0)
    exact = loss_and_gradients(rnnt_loss(*case.arguments(), skip_below=0.0), case, torch.ones(2))
    for below in (1e-8, 1e-4):
        found = loss_and_gradients(rnnt_loss(*case.arguments(), skip_below=below), case, torch.ones(2))
        assert torch.equal(found[0], exact[0])
        assert all(relative_error(a, b) < 30 * below for a, b in zip(found[1:], exact[1:], strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(found[1:], exact[1:], strict=True))


def test_empty_transcript_is_all_blanks() -> None:
    case = random_case(B=1, T=4, U=0, V=3, J=5)
    blanks = torch.log_softmax(torch.tanh(case.f + case.g) @ case.weight.T + case.bias, -1)[0, :, 0]
    torch.testing.assert_close(rnnt_loss(*case.arguments())[0], -blanks.sum())


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_a_factorised_blank_may_be_certain(logit: float) -> None:
    """σ(±200) is 0 or 1 to any precision that a number has: the loss and its gradients stay finite."""
    case = random_case(B=1, T=3, U=2, V=5, J=4).to(dtype=torch.float32)
    with torch.no_grad():
        case.bias[0] = logit
    loss = rnnt_loss(*case.arguments(), factorised=True)
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(x).all() for x in torch.autograd.grad(loss.sum(), case.leaves))


def test_autocast_makes_16_bit_tiles_and_keeps_float32_gradients() -> None:
    case = random_case(B=2, T=6, U=3, V=9, J=8).to(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = rnnt_loss(*case.arguments())
    exact = rnnt_loss(*case.arguments())
    assert loss.dtype == torch.float32 and not torch.equal(loss, exact)
    assert relative_error(loss, exact) < 2e-2
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(loss.sum(), case.leaves))


def test_says_what_is_wrong_with_its_input() -> None:
    case = random_case(B=2, T=4, U=2, V=5, J=3)
    f, g, weight, bias, labels, f_lengths, label_lengths, *_ = case.arguments()
    with pytest.raises(BadInputError, match=r"g must have shape \(2, 3, 3\)"):
        rnnt_loss(f, g[:, :2], weight, bias, labels, f_lengths, label_lengths)
    with pytest.raises(BadInputError, match="blank=5 is not an id"):
        rnnt_loss(f, g, weight, bias, labels, f_lengths, label_lengths, blank=5)
    with pytest.raises(BadInputError, match="utterance 1 of the batch has 0 frames"):
        rnnt_loss(f, g, weight, bias, labels, torch.tensor([4, 0]), label_lengths)
    with pytest.raises(BadInputError, match="activation must be"):
        rnnt_loss(f, g, weight, bias, labels, f_lengths, label_lengths, activation="gelu")
