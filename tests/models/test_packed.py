"""Packed weights against the modules they replace."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ilme.errors import BadInputError, IlmeError
from ilme.ilm.attention import AttentionInternalLM
from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import EncoderConfig
from ilme.models.lstm import LSTMStack
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.models.packed import (
    PackedLinear,
    PackedLSTMStack,
    attend,
    in_few_sizes,
    is_packed,
    pack,
    packed_copy,
    packed_product,
)
from ilme.models.rnnt import RNNT, RNNTConfig
from ilme.testing import numbered_tokens

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2, "int8": 2e-2}  # of ‖y‖, for random weights and inputs


def available(format):
    try:
        pack(nn.Linear(4, 4).eval(), format)
    except IlmeError as error:
        pytest.skip(str(error))


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("format", TOLERANCE)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 130), st.integers(1, 200), st.integers(1, 300), st.booleans(), st.integers(0, 1000))
@torch.no_grad()
def test_products_agree(format, rows, inputs, outputs, bias, seed):
    available(format)
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias).eval()
    x = torch.randn(rows, inputs)
    expected = linear(x)
    found = pack(copy.deepcopy(linear), format)(x)
    assert found.dtype == torch.float32
    scale = float(x.norm() * linear.weight.norm() / (rows * inputs * outputs) ** 0.5) * (rows * outputs) ** 0.5
    assert float((found - expected).norm()) <= TOLERANCE[format] * max(scale, float(expected.norm()))


def test_products_are_made_of_few_numbers_of_rows():
    """oneDNN compiles and keeps one for each: of any number a long run would keep a thousand."""
    asked = []

    def double(x):
        asked.append(len(x))
        return 2 * x

    product = in_few_sizes(double)
    for rows in range(700):
        x = torch.randn(rows, 3)
        assert torch.equal(product(x), 2 * x)
    assert set(asked) == {0, 1, 3, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64}


@pytest.mark.parametrize(("format", "many"), [("float32", False), ("float32", True), ("float16", False)])
@torch.no_grad()
def test_weights_that_16_bits_hold_lose_nothing(format, many):
    """As those of most published files."""
    available(format)
    torch.manual_seed(0)
    weight, bias, x = torch.randn(50, 70).half().float(), torch.randn(50), torch.randn(9, 70)
    expected = nn.functional.linear(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(packed_product(weight, bias, format, many)(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_attention_of_heads_agrees(dtype):
    available("float32" if dtype == torch.float32 else "bfloat16")
    torch.manual_seed(0)
    query, key, value, added = torch.randn(3, 20, 8), torch.randn(3, 31, 8), torch.randn(3, 31, 8), torch.randn(31)
    found = attend(query, key, value, 0.5, added, dtype)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=0.5)
    assert distance(found, expected.transpose(0, 1).reshape(20, 24)) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("format", TOLERANCE)
@torch.no_grad()
def test_a_row_gives_the_same_whatever_is_multiplied_with_it(format):
    available(format)
    torch.manual_seed(0)
    product = packed_product(torch.randn(40, 24), torch.randn(40), format)
    x = torch.randn(300, 24)
    whole = product(x)
    for rows in (1, 9, 33, 130, 257):
        torch.testing.assert_close(product(x[:rows]), whole[:rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("format", TOLERANCE)
@torch.no_grad()
def test_lstm_steps_agree_with_the_pass_over_time(format):
    available(format)
    torch.manual_seed(0)
    stack = LSTMStack(24, 40, 3).eval()
    x = torch.randn(7, 12, 24)
    expected = stack(x)
    packed = pack(copy.deepcopy(stack), format)
    assert isinstance(packed, PackedLSTMStack)
    state, outputs = packed.zero_state(7), []
    for u in range(12):
        out, state = packed.step(x[:, u], state)
        outputs.append(out)
    assert distance(torch.stack(outputs, 1), expected) < TOLERANCE[format]
    assert distance(packed(x), expected) == 0  # whole sequences are not packed


@pytest.mark.parametrize("format", TOLERANCE)
@torch.no_grad()
def test_a_row_scores_the_same_whatever_else_is_in_the_batch(format):
    available(format)
    torch.manual_seed(1)
    product = packed_product(torch.randn(60, 50), torch.randn(60), format)
    x = torch.randn(9, 50) * torch.logspace(-3, 3, 9)[:, None]
    alone = torch.cat([product(x[i : i + 1]) for i in range(9)])
    torch.testing.assert_close(product(x), alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_int8_survives_zero_and_huge_rows():
    available("int8")
    weight, bias = torch.randn(8, 6), torch.randn(8)
    x = torch.stack([torch.zeros(6), torch.full((6,), 1e6), torch.full((6,), 1e-12)])
    found = packed_product(weight, bias, "int8")(x)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[0], bias)
    assert distance(found[1], x[1] @ weight.T + bias) < 0.02


def tiny_rnnt(hat=False):
    torch.manual_seed(3)
    config = RNNTConfig(
        encoder=EncoderConfig(features=5, hidden=6, layers=1),
        embedding=12, prediction_hidden=16, prediction_layers=2, projection=12, joint=16, hat=hat,
    )  # fmt: skip
    return RNNT(config, numbered_tokens(20, "transducer")).eval()


@pytest.mark.parametrize("hat", [False, True])
@torch.no_grad()
def test_a_whole_network_keeps_its_parameters_and_its_answers(hat):
    model = tiny_rnnt(hat)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    labels, f = torch.arange(1, 6), torch.randn(5, 16)

    def answer():
        g, state = model.start(5)
        g, _ = model.predict(labels, state)
        return model.join(f, g)

    expected = answer()
    assert pack(model) is model and is_packed(model)
    torch.testing.assert_close(answer(), expected, rtol=1e-5, atol=1e-5)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert model.device == torch.device("cpu")


def test_packing_twice_changes_nothing_and_another_format_starts_from_the_original():
    model = pack(tiny_rnnt())
    output = model.output
    assert pack(model).output is output
    available("int8")
    pack(model, "int8")
    assert model.output.format == "int8" and model.output.weight is output.weight
    assert all(m.format == "int8" for m in model.modules() if isinstance(m, PackedLinear | PackedLSTMStack))


def test_linear_layers_may_have_a_format_of_their_own():
    available("int8")
    model = pack(tiny_rnnt(), "int8", linear="float32")
    assert model.output.format == "float32" and model.predictor.rnn.format == "int8"
    assert pack(model, "int8").output.format == "int8"
    with pytest.raises(BadInputError, match="no packed format is called 'int4'"):
        pack(tiny_rnnt(), "int8", linear="int4")


@torch.no_grad()
def test_tied_weights_stay_tied():
    lm = LSTMLM(LSTMLMConfig(embedding=8, hidden=10, layers=1), numbered_tokens(9, "attention")).eval()
    rows, _ = lm.start(2)
    pack(lm)
    assert lm.output.weight is lm.embedding.weight
    torch.testing.assert_close(lm.start(2)[0], rows, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_new_weights_are_packed_anew():
    linear, other = nn.Linear(6, 4).eval(), nn.Linear(6, 4).eval()
    packed, x = pack(linear), torch.randn(3, 6)
    packed.load_state_dict(other.state_dict())
    torch.testing.assert_close(packed(x), other(x), rtol=1e-5, atol=1e-6)
    stack, fresh = pack(LSTMStack(6, 4, 1).eval()), LSTMStack(6, 4, 1).eval()
    stack.load_state_dict(fresh.state_dict())
    torch.testing.assert_close(stack.step(x, stack.zero_state(3))[0], fresh.step(x, fresh.zero_state(3))[0])


def test_gradients_take_the_plain_product():
    packed, x = pack(nn.Linear(6, 4).eval()), torch.randn(3, 6, requires_grad=True)
    packed(x).sum().backward()
    torch.testing.assert_close(x.grad, packed.weight.sum(0).expand(3, 6))


def test_refusals_say_what_to_do():
    with pytest.raises(BadInputError, match=r"training mode; call \.eval\(\)"):
        pack(nn.Linear(2, 2))
    with pytest.raises(BadInputError, match="starts from float32"):
        pack(nn.Linear(2, 2).double().eval())
    with pytest.raises(BadInputError, match="packing is for the CPU"):
        pack(nn.Linear(2, 2, device="meta").eval())
    with pytest.raises(BadInputError, match="no packed format is called 'int4'; there are float32"):
        pack(nn.Linear(2, 2).eval(), "int4")
    with pytest.raises(BadInputError, match="starts from float32"):
        pack(nn.Linear(2, 2).eval()).double()


def test_packing_warns_of_nothing():
    available("int8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack(nn.Linear(8, 8).eval(), "int8")(torch.randn(2, 8))


def tiny_aed():
    torch.manual_seed(5)
    config = AEDConfig(
        encoder=EncoderConfig(features=5, hidden=6, layers=1, bidirectional=True, projection=12),
        decoder_hidden=24, decoder_layers=2, attention=8, filters=2, width=3,
    )  # fmt: skip
    return AED(config, numbered_tokens(30, "attention")).eval()


@torch.no_grad()
def test_a_twin_shares_parameters_and_leaves_its_host_alone():
    available("int8")
    aed = pack(tiny_aed())
    second = packed_copy(aed, "int8")
    assert aed.rnn.format == "float32" and second.rnn.format == second.output.format == "int8"
    assert [id(p) for p in second.parameters()] == [id(p) for p in aed.parameters()]
    assert list(second.state_dict()) == list(aed.state_dict())


@torch.no_grad()
def test_a_twin_takes_the_labels_products_from_its_host():
    available("int8")
    plain = tiny_aed()
    aed = pack(copy.deepcopy(plain))
    second, asked = packed_copy(aed, "int8"), []
    read = second.rnn.read.product
    second.rnn.read.product = lambda x: asked.append(len(x)) or read(x)
    labels = torch.tensor([3, 7, 3, 9, 11, 3, 2, 1, 5])
    exact, state = AttentionInternalLM(plain).start(9)
    expected, _ = AttentionInternalLM(plain).score(labels, state)
    exact, state = AttentionInternalLM(aed).start(9)
    rounded, rounded_state = AttentionInternalLM(second).start(9)
    assert asked == [9]
    exact, _ = AttentionInternalLM(aed).score(labels, state)
    rounded, _ = AttentionInternalLM(second).score(labels, rounded_state)
    assert asked == [9, 9]
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-4)
    assert 0 < float((rounded - expected).abs().max()) < 0.1


@torch.no_grad()
def test_new_weights_reach_the_host_and_its_twin():
    available("int8")
    aed, other = pack(tiny_aed()), tiny_aed()
    second = packed_copy(aed, "int8")
    AttentionInternalLM(second).start(2)
    for parameter in other.parameters():
        parameter.mul_(1.5)
    aed.load_state_dict(other.state_dict())
    expected, _ = AttentionInternalLM(other).start(2)
    torch.testing.assert_close(AttentionInternalLM(aed).start(2)[0], expected, rtol=1e-4, atol=1e-4)
    assert float((AttentionInternalLM(second).start(2)[0] - expected).abs().max()) < 0.1


@torch.no_grad()
def test_a_vector_may_stand_in_for_the_context_of_a_packed_host():
    plain = tiny_aed()
    vector = torch.randn(plain.embedding.embedding_dim)
    expected, state = AttentionInternalLM(plain, vector, 0.7).start(3)
    host = AttentionInternalLM(pack(copy.deepcopy(plain)), vector, 0.7)
    found, packed_state = host.start(3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    labels = torch.tensor([3, 7, 2])
    expected, _ = AttentionInternalLM(plain, vector, 0.7).score(labels, state)
    torch.testing.assert_close(host.score(labels, packed_state)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 40), (900, 700)])
def test_attention_of_packed_products_is_attention(queries, keys):
    available("float32")
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, queries, 16, generator=generator)
    key, value = (torch.randn(2, keys, 16, generator=generator) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.3)
    found = attend(query, key, value, 0.3).view(queries, 2, 16).transpose(0, 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
