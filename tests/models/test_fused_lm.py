"""Decoders with an LM inside: the papers' formulas in float64, the contract, the loss, and the LM left as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ilme.errors import BadInputError
from ilme.ilm import internal_lm
from ilme.losses.aed import aed_loss
from ilme.models import build, preset
from ilme.models.aed import AED, LMFusionConfig
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.fused_lm import FusedAED, replace_lm
from ilme.models.int8 import to_int8
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.models.packed import PackingError, pack
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.testing import numbered_tokens
from ilme.testing.contract import check_attention_model, check_internal_lm
from ilme.train.monitor import internal_lm_perplexity
from ilme.train.objectives import AedObjective
from ilme.train.options import AedOptions
from tests import oracle

METHODS = ("deep", "cold", "component", "simple")
V = 9
SHAPE = LSTMLMConfig(embedding=7, hidden=10, layers=2, dropout=0.4)
LABELS = [3, 7, 2, 7]


def language_model(seed: int = 5, shape: LSTMLMConfig = SHAPE, units: int = V) -> LSTMLM:
    torch.manual_seed(seed)
    lm = LSTMLM(shape, numbered_tokens(units, "attention")).double().eval()
    with torch.no_grad():
        lm.output.bias.normal_()
        lm.embedding.weight.mul_(3)
    return lm


def network(method: str, seed: int = 0, units: int = V) -> FusedAED:
    """With weights that are large enough to tell one formula from another, those that start at zero among them."""
    torch.manual_seed(seed)
    config = replace(preset("aed", "tiny"), fusion=LMFusionConfig(method, SHAPE))  # type: ignore[arg-type]
    model = build("aed", config, numbered_tokens(units, "attention")).double().eval()
    model.put_lm(language_model(units=units))
    with torch.no_grad():
        for name, p in model.output.named_parameters():
            if not name.startswith("lm."):
                p.add_(0.3 * torch.randn_like(p))
    return model


def memory_of(model: AED, seed: int = 1) -> tuple[Tensor, ...]:
    r = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 9, 240, generator=r, dtype=torch.float64).to(model.output.weight.dtype)
    return model.encode(x, torch.tensor([9, 6]))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def expected_logits(model: FusedAED, h: Tensor, lm_h: Tensor) -> Tensor:
    """The formulas above the code, from h_dec and the LM's top LSTM layer."""
    out, lm, method = model.output, model.lm, model.config.fusion.method
    p = lm_h @ lm.project.weight.T + lm.project.bias
    scores = p @ lm.embedding.weight.T + lm.output.bias
    if method == "deep":
        g = sigmoid(p @ out.gate.weight[0] + out.gate.bias)
        return h @ out.weight.T + (g[:, None] * p) @ out.lm_weight.T + out.bias
    if method == "simple":
        own = torch.log(torch.softmax(h @ out.weight.T + out.bias, -1))
        return own + torch.log(torch.softmax(scores, -1))
    told = torch.clamp((scores - scores.max(-1, keepdim=True).values) @ out.read.weight.T + out.read.bias, min=0)
    g = sigmoid(torch.cat([h, told], 1) @ out.gate.weight.T + out.gate.bias)
    r = torch.clamp(torch.cat([h, g * told], 1) @ out.mix.weight.T + out.mix.bias, min=0)
    return r @ out.weight.T + out.bias


def every_row(model: AED, memory: tuple[Tensor, ...], labels: list[int]) -> Tensor:
    """log P(· | x, labels so far) after none, one, … of the labels: (2, U + 1, V)."""
    rows, state = model.start(memory)
    out = [rows]
    for label in labels:
        rows, state = model.step(torch.full((2,), label), state, memory)
        out.append(rows)
    return torch.stack(out, 1)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_rows_are_the_papers_formula(method: str) -> None:
    model = network(method)
    memory = memory_of(model)
    dec, told = model.rnn.zero_state(2), model.lm.rnn.zero_state(2)
    weights, context = model.first_look(memory)
    wanted = []
    for label in [model.sos, *LABELS]:
        given = torch.full((2,), label)
        h, dec = model.rnn.step(model.embedding(given) + context, dec)
        lm_h, told = model.lm.rnn.step(model.lm.embedding(given), told)
        weights, context = model.attend(weights, memory, h)
        wanted.append(log_softmax(expected_logits(model, h, lm_h), -1))
    found = every_row(model, memory, LABELS)
    torch.testing.assert_close(found, torch.stack(wanted, 1), rtol=1e-10, atol=1e-10)
    labels = torch.tensor([LABELS, LABELS])
    torch.testing.assert_close(model.decode_all(memory, labels).log_softmax(-1), found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_it_keeps_the_contract_and_has_an_internal_lm(method: str) -> None:
    model = network(method).float()
    x, lengths = torch.randn(3, 14, 240, generator=torch.Generator().manual_seed(0)), torch.tensor([14, 9, 11])
    check_attention_model(model, x, lengths, [3, 7, 5])
    check_internal_lm(internal_lm(model), model, x, lengths, [3, 7, 5])


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_the_internal_lm_in_one_pass_is_that_of_the_search(method: str) -> None:
    model = network(method)
    scorer = internal_lm(model)
    score = sum(oracle.score_sequence(scorer, y, end=True) for y in (LABELS, [5]))
    assert internal_lm_perplexity(model, [LABELS, [5]]) == pytest.approx(torch.tensor(-score / 7).exp().item())


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_searchs_score_and_leaves_the_lm_alone(method: str) -> None:
    model = network(method)
    labels, lengths = torch.tensor([LABELS, [5, 0, 0, 0]]), torch.tensor([4, 1])
    with torch.no_grad():
        rows = [every_row(model, memory_of(model), y)[b] for b, y in ((0, LABELS), (1, [5]))]
        wanted = -sum(row[u, label].item() for row, y in zip(rows, ([*LABELS, 0], [5, 0]), strict=True)
                      for u, label in enumerate(y))  # fmt: skip
    loss = aed_loss(model, memory_of(model), labels, lengths)
    assert loss.item() == pytest.approx(wanted, rel=1e-10)
    loss.backward()
    without = {n for n, p in model.named_parameters() if p.grad is None}
    assert without == {n for n, _ in model.named_parameters() if n.startswith("output.lm.")}
    _check_a_difference(model, labels, lengths)


def _check_a_difference(model: FusedAED, labels: Tensor, lengths: Tensor) -> None:
    """The gradient of the largest part of each tensor of the output layer, by finite differences."""
    for name, p in model.output.named_parameters():
        if name.startswith("lm."):
            continue
        place, step, found = int(p.grad.abs().argmax()), 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                p.view(-1)[place] += sign * step
                found.append(aed_loss(model, memory_of(model), labels, lengths).item())
                p.view(-1)[place] -= sign * step
        assert (found[0] - found[1]) / (2 * step) == pytest.approx(p.grad.view(-1)[place].item(), rel=1e-4), name


def test_a_training_mode_does_not_reach_the_lm() -> None:
    model = network("cold").train()
    assert model.training and not any(m.training for m in model.lm.modules())
    assert not any(p.requires_grad for p in model.lm.parameters())


@torch.no_grad()
def test_deep_fusion_begins_as_the_decoder_it_is_made_of() -> None:
    torch.manual_seed(0)
    tokens = numbered_tokens(V, "attention")
    plain = build("aed", preset("aed", "tiny"), tokens).double().eval()
    torch.manual_seed(0)
    model = build("aed", replace(preset("aed", "tiny"), fusion=LMFusionConfig("deep", SHAPE)), tokens).double().eval()
    memory = memory_of(plain)
    torch.testing.assert_close(
        every_row(model, memory, LABELS), every_row(plain, memory, LABELS), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_file_holds_all_of_it(tmp_path: Path, method: str) -> None:
    model = network(method).float()
    save_model(tmp_path, model)
    loaded = load_checkpoint(tmp_path, "aed").model
    assert isinstance(loaded, FusedAED) and loaded.config.fusion == LMFusionConfig(method, SHAPE)  # type: ignore[arg-type]
    with torch.no_grad():
        memory = memory_of(model)
        assert torch.equal(every_row(loaded, memory, LABELS), every_row(model, memory, LABELS))


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_eight_bits_hold_it_too(tmp_path: Path, method: str) -> None:
    model = network(method).float()
    to_int8(save_model(tmp_path, model), tmp_path / "small.safetensors")
    loaded, memory = load_checkpoint(tmp_path / "small.safetensors", "aed").model, memory_of(model)
    found, wanted = (every_row(m, memory, LABELS).exp() for m in (loaded, model))
    assert (found - wanted).abs().max() < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_trains_it(method: str) -> None:
    model = network(method).float().train()
    labels, lengths = torch.tensor([LABELS, LABELS]), torch.tensor([4, 4])
    with torch.no_grad():
        exact = float(aed_loss(model, memory_of(model), labels, lengths))
    with torch.autocast("cpu", torch.bfloat16):
        loss = aed_loss(model, memory_of(model), labels, lengths)
    loss.backward()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact, rel=0.03)
    assert all(torch.isfinite(p.grad).all() for p in model.output.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_another_lm_takes_its_place(method: str) -> None:
    model = network(method)
    shape = replace(SHAPE, hidden=13, layers=1, **({} if method == "deep" else {"embedding": 4}))
    other = language_model(8, shape)
    made = replace_lm(model, other)
    memory = memory_of(model)
    assert all(torch.equal(a, b) for a, b in zip(made.lm.parameters(), other.parameters(), strict=True))
    before = every_row(model, memory, LABELS)
    assert not torch.allclose(every_row(made, memory, LABELS), before)
    assert torch.equal(every_row(replace_lm(made, language_model()), memory, LABELS), before)


def test_refusals_say_what_to_do() -> None:
    plain = build("aed", preset("aed", "tiny"), numbered_tokens(V, "attention"))
    with pytest.raises(BadInputError, match="no LM inside to replace: train one with"):
        replace_lm(plain, language_model())
    with pytest.raises(BadInputError, match="reads 7 hidden units of its LM, this LM has 4"):
        replace_lm(network("deep"), language_model(shape=replace(SHAPE, embedding=4)))
    with pytest.raises(BadInputError, match="made for an LM of"):
        network("cold").put_lm(language_model(shape=replace(SHAPE, hidden=3)))
    with pytest.raises(BadInputError, match=r"aed\.sampling is for a decoder without an LM"):
        AedObjective(network("simple"), AedOptions(sampling=0.1))


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_packed_weights_give_the_same(method: str) -> None:
    model = network(method).float()
    memory = memory_of(model)
    wanted = every_row(model, memory, LABELS)
    try:
        pack(model, "float32")
    except PackingError as error:
        pytest.skip(str(error))
    torch.testing.assert_close(every_row(model, memory, LABELS), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(method: str) -> None:
    model = network(method, units=4)
    memory = tuple(x[:1] for x in memory_of(model))
    (found,) = AttentionSearch(model, options=AttentionOptions(beam=40, max_length=2, stop_margin=100.0))(memory)
    expected = oracle.attention_best(model, memory, 2)
    for hypothesis, (score, labels, asr) in zip(found[:5], expected[:5], strict=True):
        assert hypothesis.tokens == labels
        assert hypothesis.scores.asr == pytest.approx(asr, abs=1e-9)
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
