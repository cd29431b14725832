"""A TDT of ours: its contract, its file, its search against its own loss, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ilme
from ilme import models
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.losses.tdt import tdt_loss
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.tdt import TDT, TDT_DURATIONS
from ilme.recogniser.packing import pack_networks
from ilme.search.transducer import TransducerOptions
from ilme.testing import check_transducer, numbered_tokens
from ilme.workflows.export import export_onnx


def tiny_tdt(seed=0, **changes):
    torch.manual_seed(seed)
    config = replace(models.preset("rnnt", "tiny"), durations=TDT_DURATIONS, **changes)
    network = models.build("rnnt", config, numbered_tokens(12, "transducer")).eval()
    network.attach(None, FrontendConfig())
    return network


@pytest.fixture(scope="module")
def network():
    return tiny_tdt()


def test_it_is_a_transducer_with_durations(network):
    assert isinstance(network, TDT) and network.kind == "rnnt" and network.durations == (0, 1, 2, 3, 4)
    features, lengths = torch.randn(2, 40, 240), torch.tensor([40, 24])
    check_transducer(network, features, lengths, [3, 7])
    f, _ = network.encode(features, lengths)
    g, _ = network.start(2)
    units, lasts = network.join_durations(f[:, 0], g)
    assert torch.equal(units, network.join(f[:, 0], g)) and lasts.shape == (2, 5)
    assert "duration_output.weight" not in network.language_parameters()
    assert ilme.internal_lm.available(network) == ("removed", "silence", "mean-encoder", "learned")


def test_its_file_brings_it_back(network, tmp_path):
    save_model(tmp_path / "model.safetensors", network, None, FrontendConfig())
    loaded = load_checkpoint(tmp_path / "model.safetensors", "rnnt").model
    assert isinstance(loaded, TDT)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), loaded.parameters(), strict=True))


@torch.no_grad()
def test_the_searchs_scores_are_the_losss(network):
    """Where no sequence is pruned before it ends: the score of the best ones is −loss."""
    f, _ = network.encode(torch.randn(1, 6, 240), torch.tensor([6]))
    (found,) = ilme.TDTSearch(network, options=TransducerOptions(beam=400, max_symbols=6))(f[:, :2], torch.tensor([2]))
    for hypothesis in found[:10]:
        labels = torch.tensor([hypothesis.tokens], dtype=torch.long).view(1, -1)
        weight = torch.cat([network.output.weight, network.duration_output.weight])
        bias = torch.cat([network.output.bias, network.duration_output.bias])
        sizes = torch.tensor([2]), torch.tensor([labels.shape[1]])
        loss = tdt_loss(f[:, :2], network.predict_all(labels), weight, bias, labels, *sizes, network.durations)
        assert hypothesis.score == pytest.approx(-float(loss), abs=2e-3)


def test_it_runs_packed(network):
    other = tiny_tdt()
    pack_networks(other, (), "int8")
    f, lengths = network.encode(torch.randn(1, 20, 240), torch.tensor([20]))
    assert len(ilme.TDTSearch(other, options=TransducerOptions(beam=4))(f, lengths)[0]) == 4


def test_what_it_cannot_be(network, tmp_path):
    with pytest.raises(BadInputError, match="hat and durations are two kinds"):
        tiny_tdt(hat=True)
    with pytest.raises(BadInputError, match="durations must be different numbers"):
        replace(network.config, durations=(0, 0))
    with pytest.raises(BadInputError, match="a TDT cannot be exported"):
        export_onnx(network, tmp_path / "onnx")
