"""The attention decoder's loss against its own step-by-step scores, and what scheduled sampling changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from ilme import models
from ilme.losses.aed import _Loop, aed_loss, decoder_outputs
from ilme.losses.ctc import ctc_loss
from ilme.models.aed import AED
from ilme.models.energies import location_energies
from ilme.testing import numbered_tokens
from ilme.train.runs import network_config


def small_batch(ctc: bool = False) -> tuple[AED, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    config = network_config("aed", "tiny", {"ctc": ctc, "encoder": {"features": 12}})
    model: AED = models.build("aed", config, numbered_tokens(9, "attention"))
    labels = torch.tensor([[3, 4, 5], [6, 7, 0]])
    return model, torch.randn(2, 7, 12), torch.tensor([7, 4]), labels, torch.tensor([3, 2])


def test_is_the_sum_of_the_steps_own_scores() -> None:
    model, features, sizes, labels, label_lengths = small_batch()
    memory = model.encode(features, sizes)
    total = 0.0
    for b in range(2):
        one = tuple(x[b : b + 1] for x in memory)
        rows, state = model.start(one)
        for label in [*labels[b, : label_lengths[b]].tolist(), 0]:  # 0 is <eos>
            total -= float(rows[0, label].detach())
            rows, state = model.step(torch.tensor([label]), state, one)
    loss = aed_loss(model, memory, labels, label_lengths)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-5)


def test_decoder_outputs_are_the_models_own_with_gradients() -> None:
    model, features, sizes, labels, _ = small_batch()
    found = decoder_outputs(model, model.encode(features, sizes), labels)[0]
    wanted = model.decode_all(model.encode(features, sizes), labels)
    torch.testing.assert_close(model.output(found), wanted)
    weights = torch.randn_like(wanted)
    leaves = [p for p in model.parameters() if p.requires_grad]
    grads = [torch.autograd.grad((x * weights).sum(), leaves) for x in (model.output(found), wanted)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filters", [0, 5])
def test_the_loss_attends_as_the_network_does(filters: int) -> None:
    torch.manual_seed(0)
    config = network_config("aed", "tiny", {"filters": filters, "encoder": {"features": 12}})
    model: AED = models.build("aed", config, numbered_tokens(9, "attention"))
    memory = model.encode(torch.randn(2, 50, 12), torch.tensor([50, 31]))
    previous, h = torch.rand_like(memory[2]).softmax(-1), torch.randn(2, config.decoder_hidden)
    found = _Loop(model, memory, torch.float32).attend(previous, h)
    assert all(torch.equal(a, b) for a, b in zip(found, model.attend(previous, memory, h), strict=True))
    with torch.no_grad():  # a search on a CPU has its own, faster sums
        torch.testing.assert_close(model.attend(previous, memory, h), found)


def test_recomputing_changes_no_gradient() -> None:
    model, features, sizes, labels, label_lengths = small_batch()
    grads = []
    for recompute in (False, True):
        loss = aed_loss(model, model.encode(features, sizes), labels, label_lengths, 0.1, recompute=recompute)
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(grads[1], grads[0])


def test_sampling_reads_the_decoders_own_draws_only_where_asked() -> None:
    model, features, sizes, labels, _ = small_batch()
    memory = model.encode(features, sizes)
    with torch.no_grad():
        model.output.bias[8] = 50.0  # the decoder always draws 8
        plain = decoder_outputs(model, memory, labels)[0]
        replace = torch.tensor([[False, True, False], [False, False, False]])
        sampled = decoder_outputs(model, memory, labels, replace)[0]
        as_if = decoder_outputs(model, memory, torch.tensor([[3, 8, 5], [6, 7, 0]]))[0]
    torch.testing.assert_close(sampled, as_if)
    assert torch.equal(sampled[1], plain[1]) and torch.equal(sampled[0, :2], plain[0, :2])
    assert not torch.equal(sampled[0, 2:], plain[0, 2:])


def test_a_decoder_that_forgets_reads_only_some_of_its_labels() -> None:
    model, features, sizes, labels, _ = small_batch()
    labels = labels.clamp(min=1)
    memory = model.encode(features, sizes)
    with torch.no_grad():
        model.embedding.weight[2] = 0.0  # what is forgotten is read as this label
        torch.manual_seed(1)
        forgot = torch.rand(labels.shape) < 0.5
        assert 0 < forgot.sum() < forgot.numel()
        torch.manual_seed(1)
        found = decoder_outputs(model, memory, labels, forget=0.5)[0]
        torch.testing.assert_close(found, decoder_outputs(model, memory, labels.masked_fill(forgot, 2))[0])
        start = decoder_outputs(model, memory, labels, forget=0.99)[0][:, 0]
        torch.testing.assert_close(start, decoder_outputs(model, memory, labels)[0][:, 0])  # the start is not forgotten


def test_ctc_counts_each_utterance_and_forgives_impossible_ones() -> None:
    model, features, sizes, labels, label_lengths = small_batch(ctc=True)

    def loss(rows: slice, frames: int, lengths: torch.Tensor) -> torch.Tensor:
        h, lengths = model.encoder(features[rows, :frames], lengths)
        return ctc_loss(model.ctc, h, lengths, labels[rows], label_lengths[rows], blank=0)

    each = [loss(slice(b, b + 1), n, sizes[b : b + 1]) for b, n in enumerate(sizes.tolist())]
    torch.testing.assert_close(loss(slice(None), int(sizes.max()), sizes), sum(each))
    impossible = loss(slice(1), 2, torch.tensor([2]))
    assert float(impossible.detach()) == 0.0


def test_ctc_under_mixed_precision_is_float16s_close_to_float64s() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 50)
    h, lengths = torch.randn(3, 30, 16), torch.tensor([30, 22, 9])
    labels, label_lengths = torch.randint(1, 50, (3, 6)), torch.tensor([6, 4, 2])
    found = []
    for dtype, mixed in ((torch.float64, False), (torch.float32, True)):
        own, x = copy.deepcopy(layer).to(dtype), h.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = ctc_loss(own, x, lengths, labels, label_lengths, blank=0)
        found.append([loss, *torch.autograd.grad(loss, [x, *own.parameters()])])
    for exact, mixed_one in zip(*found, strict=True):
        off = float((mixed_one - exact).detach().abs().max() / exact.detach().abs().max())
        assert off < 1e-3  # the step of float16 at 1; bfloat16's is eight times as large


def test_energies_follow_their_formula() -> None:
    torch.manual_seed(0)
    keys, query, moved, location, v = (torch.randn(*s) for s in ((2, 5, 6), (2, 6), (2, 5, 3), (6, 3), (6,)))
    found = location_energies(keys, query, moved, location, v)
    for b, t in ((0, 0), (1, 4)):
        inside = keys[b, t] + query[b] + location @ moved[b, t]
        torch.testing.assert_close(found[b, t], (v * inside.tanh()).sum())
