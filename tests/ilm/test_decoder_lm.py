"""The model's own decoder as an LM: before training its internal LM, afterwards its own; saved, loaded, refused."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError, CheckpointError
from ilme.ilm import internal_lm
from ilme.ilm.decoder_lm import decoder_lm, has_open_decoder, is_decoder_lm, load_decoder_lm, save_decoder_lm
from ilme.lm.ngram import lm_tokens
from ilme.losses.cross_entropy import linear_cross_entropy
from ilme.recogniser.loading import load_lm, load_model
from ilme.runtime.state import select
from ilme.search.rescoring import sequence_scores
from ilme.testing import numbered_tokens
from ilme.train.objectives import LmObjective
from tests.checkpoints import write_checkpoints

FAMILIES = ("whisper", "moonshine", "speech2text", "rnnt", "aed")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = write_checkpoints(tmp_path_factory.mktemp("decoder-lm"), ["rnnt", "aed"])
    return {kind: load_model(folder / kind) for kind in ("rnnt", "aed")}


@pytest.fixture(params=FAMILIES)
def host(request, hosts):
    if request.param in hosts:
        return hosts[request.param]
    pytest.importorskip("transformers")
    from tests.adapters import tiny

    return getattr(tiny, f"tiny_{request.param}")()


def sentences(host):
    usable = [i for i in range(4, len(host.tokens)) if i not in lm_tokens(host.tokens).special][:12]
    return [usable[0:4], usable[2:4], usable[5:6], usable[1:8]]


def trained(host, steps=30):
    """A decoder that has learned the sentences by heart."""
    torch.manual_seed(0)
    lm = decoder_lm(host)
    objective, optimiser = LmObjective(lm), torch.optim.Adam(lm.parameters(), 0.02)
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(y) for y in sentences(host)], batch_first=True)
    lengths = torch.tensor([len(y) for y in sentences(host)])
    losses = []
    for _ in range(steps):
        loss = objective(labels.to(lm.device), lengths.to(lm.device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    return lm.eval().requires_grad_(False)


def test_before_training_it_is_the_internal_lm(host):
    """But for the end of a transducer, and for units that a Whisper never puts out, which a text may hold."""
    lm = decoder_lm(host)
    how = "zeroed" if hasattr(host, "decoder") else "removed"
    internal, usable = internal_lm(host, how), sorted({i for y in sentences(host) for i in y})
    (rows, state), (expected, other) = lm.start(2), internal.start(2)
    for label in (None, *sentences(host)[0]):
        if label is not None:
            labels = torch.tensor([label, usable[-1]])
            (rows, state), (expected, other) = lm.score(labels, state), internal.score(labels, other)
        own, theirs = (r[:, usable].log_softmax(-1) for r in (rows, expected))
        torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rows.exp().sum(1), torch.ones(2), atol=1e-4, rtol=0)


def test_the_loss_is_what_the_steps_say(host):
    """Teacher-forced in one pass, and label by label with the cache: the same log P, end included."""
    lm = trained(host)
    lengths = torch.tensor([len(y) for y in sentences(host)])
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(y) for y in sentences(host)], batch_first=True)
    with torch.no_grad():
        total = float(LmObjective(lm).eval()(labels, lengths))
    steps = sequence_scores(lm, sentences(host), finish=True)
    assert total == pytest.approx(-float(steps.sum()), rel=1e-4)
    alone = torch.cat([sequence_scores(lm, [y], finish=True) for y in sentences(host)])
    torch.testing.assert_close(steps, alone, atol=1e-4, rtol=1e-4)


def test_states_belong_to_one_sequence_each(host):
    lm = trained(host, steps=25)
    a, b = sentences(host)[0][:2]
    _, state = lm.start(2)
    _, state = lm.score(torch.tensor([a, b]), state)
    straight, _ = lm.score(torch.tensor([b, b]), state)
    swapped, _ = lm.score(torch.tensor([b, b]), select(state, torch.tensor([1, 0])))
    torch.testing.assert_close(swapped, straight.flip(0))


def test_training_leaves_the_model_as_it_was(host):
    before = {name: value.clone() for name, value in host.language_parameters().items()}
    internal = internal_lm(host)
    rows = internal.start(1)[0].clone()
    trained(host)
    assert all(torch.equal(value, before[name]) for name, value in host.language_parameters().items())
    assert torch.equal(internal.start(1)[0], rows)


def test_what_is_saved_is_loaded_for_this_model_alone(host, tmp_path):
    lm, file = trained(host), tmp_path / "lm.safetensors"
    save_decoder_lm(file, lm, host)
    assert is_decoder_lm(file) and not is_decoder_lm(tmp_path / "none.safetensors")
    again = load_lm(file, host)
    expected = sequence_scores(lm, sentences(host), finish=True)
    assert torch.equal(sequence_scores(again, sentences(host), finish=True), expected)
    assert not any(p.requires_grad for p in again.parameters())
    with pytest.raises(BadInputError, match="runs only beside that model"):
        load_lm(file, host.tokens)
    weight = next(p for p in host.language_parameters().values() if p.ndim > 1)
    kept = weight.clone()
    with torch.no_grad():
        weight.mul_(-1)
    try:
        with pytest.raises(CheckpointError, match="another training"):
            load_decoder_lm(file, host)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_files_of_other_models_and_damaged_ones_are_refused(hosts, tmp_path):
    from ilme.runtime.tensors import read_tensors, write_tensors

    file = tmp_path / "lm.safetensors"
    save_decoder_lm(file, decoder_lm(hosts["rnnt"]), hosts["rnnt"])
    with pytest.raises(CheckpointError, match="decoder of another model"):
        load_decoder_lm(file, hosts["aed"])
    tensors, header = read_tensors(file)
    for changed, message in [
        ({k: v for k, v in tensors.items() if k != "fingerprint"}, "does not say whose decoder"),
        ({k: v for k, v in tensors.items() if k != "vector"}, "does not fit"),
        (tensors | {"vector": tensors["vector"][:-1]}, "does not fit"),
        (tensors | {"vector": tensors["vector"] * torch.nan}, "NaN"),
    ]:
        write_tensors(file, changed, header)
        with pytest.raises(CheckpointError, match=message):
            load_decoder_lm(file, hosts["rnnt"])
    write_tensors(file, tensors, {"ilme-decoder-lm": '{"version": 9}'})
    with pytest.raises(CheckpointError, match="version 9"):
        load_decoder_lm(file, hosts["rnnt"])


def test_a_model_without_open_weights_is_refused():
    class Closed:
        kind, tokens = "onnx-whisper", numbered_tokens(8, "attention")

    assert not has_open_decoder(Closed())
    with pytest.raises(BadInputError, match=r"'onnx-whisper' cannot be trained.*--lm ngram"):
        decoder_lm(Closed())


def test_packed_it_scores_the_same(host):
    from ilme.recogniser.packing import pack_networks

    lm = trained(host)
    expected = sequence_scores(lm, sentences(host), finish=True)
    pack_networks(host, (lm,), "float32")
    torch.testing.assert_close(sequence_scores(lm, sentences(host), finish=True), expected, atol=1e-3, rtol=1e-4)


def test_the_output_matrix_of_a_transformer_is_shared():
    pytest.importorskip("transformers")
    from tests.adapters.tiny import tiny_whisper

    model = tiny_whisper()
    lm = decoder_lm(model)
    assert lm.output.weight is model.decoder.output.weight
    assert all(p.shape != model.decoder.output.weight.shape for p in lm.parameters())
    h = lm(torch.tensor([[lm.sos, 5, 6]]))
    loss = linear_cross_entropy(h[0], lm.output.weight, lm.output.bias, torch.tensor([5, 6, model.tokens.eos]))
    assert float(loss.detach()) == pytest.approx(-float(sequence_scores(lm, [(5, 6)], finish=True)[0]), rel=1e-4)
