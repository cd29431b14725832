"""The TDT's loss against every alignment, finite differences, itself in other tiles, and the search's own scores."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.losses.tdt import tdt_loss

from .transducer_oracles import Case, random_case, relative_error

FRAMES = ((0, 1, 2, 3, 4), (0, 1), (1, 3), (2, 0, 1))


def tdt_case(durations, *sizes, seed=0, **form) -> Case:
    """A case whose output layer has the durations behind the labels; V counts the labels alone."""
    case = random_case(*sizes, seed=seed, **form)
    r = torch.Generator().manual_seed(seed + 1)
    extra = torch.randn(len(durations), case.f.shape[2] + 1, generator=r, dtype=torch.float64)
    with torch.no_grad():
        case.weight = torch.cat([case.weight, extra[:, 1:]])
        case.bias = torch.cat([case.bias, extra[:, 0]])
    return case.to(dtype=torch.float64)


def loss_of(case, durations, **options):
    terms = (*case.leaves, case.labels, case.f_lengths, case.label_lengths)
    return tdt_loss(*terms, durations, case.blank, **options)


def every_alignment(case, durations) -> list[float]:
    """−log of the summed probability of every path of labels, blanks and durations, one by one."""
    V = len(case.weight) - len(durations)
    losses = []
    for i in range(len(case.f)):
        T, U = int(case.f_lengths[i]), int(case.label_lengths[i])
        labels = case.labels[i].tolist()
        h = torch.tanh(case.f[i, :, None] + case.g[i]).detach()
        z = h @ case.weight.detach().T + case.bias.detach()
        units, lasts = z[..., :V].softmax(-1).tolist(), z[..., V:].softmax(-1).tolist()

        def paths(t, u, T=T, U=U, labels=labels, units=units, lasts=lasts):
            if t >= T:
                return 1.0 if u == U else 0.0
            total = 0.0
            for d, frames in enumerate(durations):
                if frames:
                    total += units[t][u][case.blank] * lasts[t][u][d] * paths(t + frames, u)
                if u < U:
                    total += units[t][u][labels[u]] * lasts[t][u][d] * paths(t + frames, u + 1)
            return total

        whole = paths(0, 0)
        losses.append(-math.log(whole) if whole else math.inf)
    return losses


@settings(max_examples=25, deadline=None)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 5),
    U=st.integers(0, 3),
    V=st.integers(2, 4),
    blank=st.integers(0, 1),
    durations=st.sampled_from(FRAMES),
    seed=st.integers(0, 10_000),
)
def test_is_the_sum_over_every_alignment(B, T, U, V, blank, durations, seed):
    case = tdt_case(durations, B, T, U, V, 4, seed=seed, blank=blank)
    for found, wanted in zip(
        loss_of(case, durations, tile_cells=3).tolist(), every_alignment(case, durations), strict=True
    ):
        if math.isinf(wanted):  # more labels than frames, and none may share one
            assert found > 1e29
        else:
            assert found == pytest.approx(wanted, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("durations", FRAMES)
def test_gradients_match_finite_differences(durations):
    case = tdt_case(durations, 2, 4, 2, 4, 3, seed=5)

    def loss(*leaves):
        return tdt_loss(*leaves, case.labels, case.f_lengths, case.label_lengths, durations, tile_cells=5)

    assert torch.autograd.gradcheck(loss, case.leaves)


def test_probabilities_of_all_sequences_sum_to_one_less_what_blank_cannot_take():
    """Labels and blanks last at least a frame: every path ends, and nothing is lost."""
    durations, T, V = (1, 2), 3, 3
    case = tdt_case(durations, 1, T, T, V, 4, seed=2)
    g = case.g[:, :1].detach()  # one language term for all sequences
    total = 0.0
    for U in range(T + 1):
        for labels in itertools.product(range(1, V), repeat=U):
            ids = torch.tensor([labels], dtype=torch.long).view(1, U)
            lengths = torch.tensor([T]), torch.tensor([U])
            loss = tdt_loss(case.f, g.expand(1, U + 1, -1), case.weight, case.bias, ids, *lengths, durations)
            total += float(torch.exp(-loss).detach())
    assert total == pytest.approx(1.0, abs=1e-12)


def test_padding_and_tiles_change_nothing():
    durations = (0, 1, 2)
    case = tdt_case(durations, 3, 7, 4, 9, 6, seed=4)
    whole = loss_of(case, durations, tile_cells=10_000)
    wanted = torch.autograd.grad(whole.sum(), case.leaves)
    for size in (1, 8, 31):
        loss = loss_of(case, durations, tile_cells=size)
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), case.leaves), wanted, rtol=1e-10, atol=1e-12)
    T, U = int(case.f_lengths[1]), int(case.label_lengths[1])
    lengths = case.f_lengths[1:2], case.label_lengths[1:2]
    terms = case.f[1:2, :T], case.g[1:2, : U + 1], case.weight, case.bias, case.labels[1:2, :U]
    torch.testing.assert_close(tdt_loss(*terms, *lengths, durations), whole[1:2])


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)], ids=str)
def test_other_number_formats_are_close(dtype, bar):
    durations = (0, 1, 2, 3, 4)
    case = tdt_case(durations, 3, 20, 6, 13, 16, seed=3)
    exact = loss_of(case, durations)
    wanted = torch.autograd.grad(exact.sum(), case.leaves)
    ours = case.to(dtype=torch.float32)
    loss = loss_of(ours, durations, dtype=dtype)
    assert loss.dtype == torch.float32 and relative_error(loss, exact) < bar
    for found, want in zip(torch.autograd.grad(loss.sum(), ours.leaves), wanted, strict=True):
        assert relative_error(found, want) < bar


def test_no_graph_is_kept_where_nothing_learns():
    case = tdt_case((0, 1), 1, 3, 1, 3, 2)
    with torch.no_grad():
        assert not loss_of(case, (0, 1)).requires_grad


def test_says_what_is_wrong():
    case = tdt_case((0, 1), 1, 3, 1, 3, 2)
    for durations in ((0,), (1, 1), (-1, 2), ()):
        with pytest.raises(BadInputError, match="durations must be different numbers of frames"):
            loss_of(case, durations)
    with pytest.raises(BadInputError, match="rows for 5 durations and a blank"):
        loss_of(case, (0, 1, 2, 3, 4))
