"""The networks: label by label gives what one pass gives, and padding changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ilme.errors import BadInputError
from ilme.models import build, preset
from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import EncoderConfig, LSTMEncoder
from ilme.models.rnnt import PRESETS, RNNT, RNNTConfig
from ilme.testing import check_transducer, numbered_tokens


def network(kind, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    config = preset(kind, "tiny")
    config = type(config)(**{**config.__dict__, **changes})
    return build(kind, config, numbered_tokens(11, "transducer" if kind == "rnnt" else "attention")).to(dtype).eval()


@torch.no_grad()
def test_a_signal_passes_all_layers_of_a_fresh_encoder():
    """With torch's own first weights of an LSTM, a thousandth of it would be left on top."""
    torch.manual_seed(0)
    encoder = LSTMEncoder(EncoderConfig(features=240, hidden=128, layers=6, dropout=0.0))
    x = torch.randn(4, 30, 240).repeat_interleave(4, 1)
    h, _ = encoder(x, torch.full((4,), 120))
    plain = torch.nn.LSTM(240, 128, 6, batch_first=True)(x)[0]
    heard, lost = (y[:, 40:].std((0, 1)).mean() for y in (h, plain))
    assert heard > 0.1 and lost < 0.003


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
@torch.no_grad()
def test_a_fresh_ctc_layer_has_six_blanks_to_a_label(kind):
    layer = network(kind, ctc=True).ctc
    shares = layer(0.1 * torch.randn(400, layer.in_features, dtype=torch.float64)).softmax(-1).mean(0)
    assert 0.8 < shares[0] < 0.9 and shares[1:].max() < 0.05


@pytest.mark.parametrize("prediction", ["lstm", "stateless"])
@torch.no_grad()
def test_prediction_step_by_step_equals_one_pass(prediction):
    model = network("rnnt", prediction=prediction)
    labels = torch.randint(1, 11, (3, 7))
    g, state = model.start(3)
    steps = [g]
    for u in range(7):
        g, state = model.predict(labels[:, u], state)
        steps.append(g)
    assert torch.allclose(torch.stack(steps, 1), model.predict_all(labels), atol=1e-12)


def test_a_stateless_prediction_network_forgets():
    model = network("rnnt", prediction="stateless", context=2)
    a = model.predict_all(torch.tensor([[3, 4, 5, 6]]))
    b = model.predict_all(torch.tensor([[7, 8, 5, 6]]))
    assert torch.equal(a[:, 4], b[:, 4]) and not torch.equal(a[:, 3], b[:, 3])


@torch.no_grad()
def test_hat_has_blank_by_a_sigmoid_and_labels_by_a_softmax():
    model = network("rnnt", hat=True)
    f, g = torch.randn(2, 5, 64, dtype=torch.float64)
    z = torch.tanh(f + g) @ model.output.weight.T + model.output.bias
    blank = 1 / (1 + torch.exp(-z[:, :1]))
    wanted = torch.cat([blank, (1 - blank) * z[:, 1:].softmax(-1)], 1)
    torch.testing.assert_close(model.join(f, g).softmax(-1), wanted, rtol=1e-12, atol=0)
    every = torch.tensor([4, 0, *(i for i in range(1, 11) if i != 4)])
    torch.testing.assert_close(model.join_some(f, g, every), model.join(f, g)[:, every], rtol=1e-12, atol=1e-12)
    few = model.join_some(f, g, torch.tensor([0, 3, 5])).log_softmax(-1)
    torch.testing.assert_close(few[:, :1], blank.log(), rtol=1e-12, atol=1e-12)  # without the rest it is blank's own


def test_hat_keeps_the_contract_of_a_transducer():
    model = network("rnnt", torch.float32, hat=True)
    check_transducer(model, torch.randn(2, 9, 240), torch.tensor([9, 6]), labels=[3, 7])


@torch.no_grad()
def test_the_lm_step_by_step_equals_one_pass():
    model = network("lm")
    labels = torch.randint(1, 11, (3, 7))
    rows, state = model.start(3)
    steps = [rows]
    for u in range(7):
        rows, state = model.score(labels[:, u], state)
        steps.append(rows)
    inputs = torch.nn.functional.pad(labels, (1, 0), value=model.sos)
    whole = model.output(model(inputs)).log_softmax(-1)
    assert torch.allclose(torch.stack(steps, 1), whole, atol=1e-12)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(3, 8, dtype=whole.dtype))


@pytest.mark.parametrize(("filters", "pace"), [(0, 0.0), (4, 0.0), (4, 2.0)])
@torch.no_grad()
def test_the_decoder_step_by_step_equals_one_pass(filters, pace):
    model = network("aed", filters=filters, pace=pace)
    memory = model.encode(torch.randn(2, 9, 240).double(), torch.tensor([9, 6]))
    labels = torch.randint(1, 11, (2, 5))
    rows, state = model.start(memory)
    steps = [rows]
    for u in range(5):
        rows, state = model.step(labels[:, u], state, memory)
        steps.append(rows)
    assert torch.allclose(torch.stack(steps, 1), model.decode_all(memory, labels).log_softmax(-1), atol=1e-12)


@torch.no_grad()
def test_an_attention_with_a_pace_first_moves_on_by_it():
    config = AEDConfig(EncoderConfig(features=6, hidden=40, layers=1), attention=320, width=31, pace=9)
    model = AED(config, numbered_tokens(5, "attention"))
    memory = model.encode(torch.randn(2, 200, 6), torch.tensor([200, 160]))
    weights, rnn = model.attend.before(memory[2]), model.rnn.zero_state(2)
    places = []
    for _ in range(12):
        weights, context = model.attend(weights, memory, rnn[0][:, -1])
        _, rnn = model.decode(torch.tensor([3, 4]), context, rnn)
        places.append((weights * torch.arange(200)).sum(-1))
    assert torch.allclose(torch.stack(places).diff(dim=0), torch.tensor(9.0), atol=2.5)
    assert model.attend.before(memory[2]).argmax(-1).tolist() == [0, 0]


def test_a_pace_needs_filters_that_look_so_far_back():
    with pytest.raises(BadInputError, match=r"pace=16"):
        AEDConfig(width=31, pace=16)
    with pytest.raises(BadInputError, match=r"pace=2"):
        AEDConfig(filters=0, pace=2)


@pytest.mark.parametrize("filters", [0, 3])
@torch.no_grad()
def test_a_search_attends_to_a_few_utterances_at_a_time(filters, monkeypatch):
    config = AEDConfig(EncoderConfig(features=6, hidden=5, layers=1), attention=4, filters=filters, width=3)
    attend = AED(config, numbered_tokens(5, "attention")).attend
    keys, query, previous = torch.randn(5, 7, 4), torch.randn(10, 4), torch.rand(10, 7)
    at_once = attend._energies(keys, query, previous)
    monkeypatch.setattr("ilme.models.aed.LARGEST", 2 * 2 * 7 * 4)
    torch.testing.assert_close(attend._energies(keys, query, previous), at_once)
    torch.testing.assert_close(attend._energies_in_blocks(keys, query, previous), at_once)


@torch.no_grad()
def test_attention_is_eqs_5_and_6():
    model = network("aed")
    memory = model.encode(torch.randn(1, 6, 240).double(), torch.tensor([6]))
    h_enc = memory[0]
    previous, h = torch.rand(1, 6).double().softmax(-1), torch.randn(1, 64).double()
    attend = model.attend
    location = torch.nn.functional.conv1d(previous[:, None], attend.filters.weight, padding=3)[0]
    energy = [
        (attend.energy.weight[0] @ torch.tanh(
            attend.query.weight @ h[0] + attend.key.weight @ h_enc[0, t] + attend.key.bias
            + attend.location.weight @ location[:, t]
        )).item()
        for t in range(6)
    ]  # fmt: skip
    weights, context = attend(previous, memory, h)
    expected = torch.tensor(energy).softmax(-1).double()
    assert torch.allclose(weights[0], expected, atol=1e-6)
    assert torch.allclose(context[0], expected @ h_enc[0], atol=1e-6)


@pytest.mark.parametrize("back", [1, 2, 5])
@torch.no_grad()
def test_a_limited_attention_goes_back_no_further(back):
    model = network("aed")
    memory = model.encode(torch.randn(2, 9, 240).double(), torch.tensor([9, 6]))
    previous = torch.full((4, 9), 1e-3).double()
    firsts = [0, 6, 3, 5]  # frames at which the last looks of two sequences of each utterance began
    previous[range(4), firsts] = 1.0
    h = torch.randn(4, 64).double()
    free, _ = model.attend(previous, memory, h)
    held, context = model.attend(previous, model.looking_back(memory, back), h)
    for row, first in enumerate(firsts):
        allowed = free[row] * (torch.arange(9) >= first - back)
        torch.testing.assert_close(held[row], allowed / allowed.sum())
        torch.testing.assert_close(context[row], held[row] @ memory[0][row // 2])


@torch.no_grad()
def test_the_first_look_is_free():
    """Before the first label the attention is uniform: it has looked nowhere."""
    model = network("aed")
    memory = model.encode(torch.randn(1, 12, 240).double(), torch.tensor([12]))
    rows, (_, weights, _) = model.start(memory)
    held, (_, held_weights, _) = model.start(model.looking_back(memory, 12))
    assert torch.equal(rows, held) and torch.equal(weights, held_weights)


@pytest.mark.parametrize("reduction, by", [(1, "mean"), (2, "concatenation"), (3, "concatenation"), (3, "mean")])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("projection", [0, 7])
@torch.no_grad()
def test_padding_does_not_reach_the_encoder(reduction, by, bidirectional, projection):
    torch.manual_seed(0)
    config = EncoderConfig(
        features=5,
        hidden=6,
        layers=3,
        bidirectional=bidirectional,
        projection=projection,
        time_reduction=reduction,
        reduce_by=by,
    )
    encoder = LSTMEncoder(config).double().eval()
    x = torch.randn(2, 11, 5).double()
    whole, lengths = encoder(x, torch.tensor([11, 6]))
    alone, alone_lengths = encoder(x[1:, :6], torch.tensor([6]))
    assert whole.shape[-1] == config.outputs
    assert lengths.tolist() == [-(-11 // reduction), -(-6 // reduction)] and alone_lengths[0] == lengths[1]
    assert torch.allclose(whole[1, : lengths[1]], alone[0], atol=1e-12)


@torch.no_grad()
def test_frames_are_reduced_to_their_mean_without_another_parameter():
    whole = LSTMEncoder(EncoderConfig(features=5, hidden=6, layers=2, projection=7, dropout=0.0)).eval()
    config = replace(whole.config, time_reduction=3, reduce_after=1, reduce_by="mean")
    slower = LSTMEncoder(config).eval()
    slower.load_state_dict(whole.state_dict())
    x, lengths = torch.randn(2, 8, 5), torch.tensor([8, 4])
    below = whole.blocks[0](x, lengths)
    means = torch.stack([below[0, :3].mean(0), below[0, 3:6].mean(0), below[0, 6:].mean(0)])
    found, frames = slower(x, lengths)
    assert frames.tolist() == [3, 2]
    torch.testing.assert_close(found[0], whole.blocks[1](means[None], torch.tensor([3]))[0])
    last = torch.stack([below[1, :3].mean(0), below[1, 3]])
    torch.testing.assert_close(found[1, :2], whole.blocks[1](last[None], torch.tensor([2]))[0])


def test_configs_that_cannot_be_built_are_named():
    with pytest.raises(BadInputError, match="width must be odd"):
        AEDConfig(width=30)
    with pytest.raises(BadInputError, match="reduce_after=6"):
        EncoderConfig(time_reduction=2, reduce_after=6)
    with pytest.raises(BadInputError, match="reduce_by='sum' must be"):
        EncoderConfig(reduce_by="sum")
    with pytest.raises(BadInputError, match="'lstm' or 'stateless'"):
        RNNTConfig(prediction="gru")
    with pytest.raises(BadInputError, match="no preset 'huge'"):
        preset("rnnt", "huge")
    with pytest.raises(BadInputError, match="no network 'ctc'"):
        preset("ctc", "tiny")
    with pytest.raises(BadInputError, match="with a blank"):
        RNNT(PRESETS["tiny"], numbered_tokens(5, "attention"))
    with pytest.raises(BadInputError, match="with an eos"):
        AED(AEDConfig(), numbered_tokens(5, "transducer"))


@torch.no_grad()
def test_an_utterance_without_frames_harms_no_other():
    x, lengths = torch.randn(2, 9, 240).double(), torch.tensor([9, 0])
    aed = network("aed")
    rows, _ = aed.start(aed.encode(x, lengths))
    alone, _ = aed.start(aed.encode(x[:1], lengths[:1]))
    assert torch.isfinite(rows).all() and torch.allclose(rows[0], alone[0], atol=1e-12)
    f, frames = network("rnnt").encode(x, lengths)
    assert torch.isfinite(f).all() and frames.tolist() == [9, 0]


def test_an_encoder_reads_few_lengths_on_a_cpu():
    """oneDNN compiles and keeps a pass for each: of any length a long run would keep one for every batch."""
    torch.manual_seed(0)
    encoder = LSTMEncoder(EncoderConfig(features=8, hidden=6, layers=3, time_reduction=2, reduce_after=1)).eval()
    asked = set()
    for block in encoder.blocks:
        block.lstm.register_forward_pre_hook(lambda lstm, given: asked.add(given[0].shape[1]))
    for frames in (1, 31, 32, 33, 70, 95):
        x, lengths = torch.randn(2, frames, 8), torch.tensor([frames, max(1, frames - 9)])
        with torch.no_grad():
            found = encoder(x, lengths)
        expected = encoder(x, lengths)  # as it is where gradients are asked for
        torch.testing.assert_close(found[0], expected[0].detach(), atol=1e-5, rtol=1e-5)
        assert found[1].tolist() == expected[1].tolist()
    assert {n for n in asked if n % 32 == 0} == {32, 64, 96}
