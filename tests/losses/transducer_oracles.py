"""Other ways to the transducer loss: every alignment one by one, and a float64 recursion under autograd."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Case:
    """Inputs of one rnnt_loss call."""

    f: Tensor
    g: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor
    f_lengths: Tensor
    label_lengths: Tensor
    blank: int = 0
    activation: str = "tanh"
    factorised: bool = False  # blank by a sigmoid, labels by a softmax of their own

    @property
    def leaves(self) -> list[Tensor]:
        return [self.f, self.g, self.weight, self.bias]

    def to(self, device: str | None = None, dtype: torch.dtype | None = None) -> Case:
        """A copy whose float tensors are leaves of that device and number format."""
        moved = [x.detach().to(device=device, dtype=dtype).requires_grad_() for x in self.leaves]
        rest = [x.to(device) for x in (self.labels, self.f_lengths, self.label_lengths)]
        return Case(*moved, *rest, self.blank, self.activation, self.factorised)

    def arguments(self) -> tuple[object, ...]:
        return (*self.leaves, self.labels, self.f_lengths, self.label_lengths, self.blank, self.activation)


def random_case(
    B: int,
    T: int,
    U: int,
    V: int,
    J: int,
    *,
    seed: int = 0,
    blank: int = 0,
    activation: str = "tanh",
    scale: float = 1.0,
    factorised: bool = False,
) -> Case:
    """A ragged float64 batch; the first utterance is full, so that every padding size occurs."""
    r = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=r, dtype=torch.float64)

    f_lengths = torch.randint(1, T + 1, (B,), generator=r)
    label_lengths = torch.randint(0, U + 1, (B,), generator=r)
    f_lengths[0], label_lengths[0] = T, U
    labels = torch.randint(0, V - 1, (B, U), generator=r)
    labels += labels >= blank  # every id but blank
    weight = scale * normal(V, J) / math.sqrt(J)
    return Case(
        normal(B, T, J),
        normal(B, U + 1, J),
        weight,
        normal(V),
        labels,
        f_lengths,
        label_lengths,
        blank,
        activation,
        factorised,
    ).to(dtype=torch.float64)


def log_probabilities(case: Case) -> Tensor:
    h = case.f[:, :, None] + case.g[:, None]
    h = h.tanh() if case.activation == "tanh" else h.relu()
    z = h @ case.weight.T + case.bias
    if not case.factorised:
        return z.log_softmax(-1)
    labels = [v for v in range(z.shape[-1]) if v != case.blank]
    p = z[..., case.blank, None].sigmoid()
    shares = (1 - p) * z[..., labels].softmax(-1)
    return torch.cat([shares[..., : case.blank], p, shares[..., case.blank :]], -1).log()


def plain_loss(case: Case) -> Tensor:
    """The recursion node by node, differentiated by autograd."""
    scores = log_probabilities(case)
    losses = []
    for b, (T, U) in enumerate(zip(case.f_lengths.tolist(), case.label_lengths.tolist(), strict=True)):
        alpha: dict[tuple[int, int], Tensor] = {}
        for t, u in itertools.product(range(T), range(U + 1)):
            ways = []
            if t > 0:
                ways.append(alpha[t - 1, u] + scores[b, t - 1, u, case.blank])
            if u > 0:
                ways.append(alpha[t, u - 1] + scores[b, t, u - 1, case.labels[b, u - 1]])
            alpha[t, u] = torch.logsumexp(torch.stack(ways), 0) if ways else scores.new_zeros(())
        losses.append(-(alpha[T - 1, U] + scores[b, T - 1, U, case.blank]))
    return torch.stack(losses)


def brute_force_loss(case: Case) -> list[float]:
    """Sums the probability of every alignment: every order of U labels and T blanks that ends in a blank."""
    scores = log_probabilities(case).tolist()
    losses = []
    for b, (T, U) in enumerate(zip(case.f_lengths.tolist(), case.label_lengths.tolist(), strict=True)):
        total = 0.0
        for places in itertools.combinations(range(T - 1 + U), U):
            t = u = 0
            path = 0.0
            for step in range(T + U):
                if step in places:
                    path += scores[b][t][u][int(case.labels[b, u])]
                    u += 1
                else:
                    path += scores[b][t][u][case.blank]
                    t += 1
            total += math.exp(path)
        losses.append(-math.log(total))
    return losses


def relative_error(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.detach().double().cpu()
    return float((found.detach().double().cpu() - wanted).norm() / wanted.norm())


def loss_and_gradients(loss: Tensor, case: Case, weights: Tensor) -> list[Tensor]:
    return [loss, *torch.autograd.grad((loss * weights.to(loss)).sum(), case.leaves)]
