"""Checkpoints: what is written comes back, what is damaged says so."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import CheckpointError
from ilme.models.checkpoint import _NothingDrawn, load_checkpoint, save_model
from ilme.runtime.files import write_atomically
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.testing import numbered_tokens


def network(kind, units=20):
    torch.manual_seed(0)
    tokens = numbered_tokens(units, "transducer" if kind == "rnnt" else "attention")
    return models.build(kind, models.preset(kind, "tiny"), tokens).eval()


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_is_saved_is_loaded(kind, tmp_path):
    model = network(kind)
    file = save_model(tmp_path / kind, model, frontend=FrontendConfig())
    loaded = load_checkpoint(tmp_path / kind)
    assert loaded.kind == kind and not loaded.model.training
    assert loaded.model.config == model.config and loaded.model.tokens == model.tokens
    assert loaded.frontend == FrontendConfig()
    for (name, a), b in zip(model.state_dict().items(), loaded.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert load_checkpoint(file, expect=kind).kind == kind


def test_a_tied_embedding_stays_tied_and_is_stored_once(tmp_path):
    model = network("lm")
    tensors, _ = read_tensors(save_model(tmp_path, model))
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in model.parameters())
    loaded = load_checkpoint(tmp_path).model
    assert loaded.output.weight is loaded.embedding.weight


def test_the_tokenizer_travels(tmp_path):
    tokenizer = SentencePieceTokenizer.train(["the cat sat on the mat", "a dog sat"] * 20, vocab_size=24)
    lm = models.build("lm", models.preset("lm", "tiny"), tokenizer.tokens_for("lm"))
    save_model(tmp_path, lm, tokenizer.for_role("lm"))
    loaded = load_checkpoint(tmp_path)
    assert loaded.tokenizer.encode("the cat") == tokenizer.encode("the cat")
    assert loaded.tokenizer.tokens == loaded.model.tokens


def test_half_precision_on_disk_is_float32_in_use(tmp_path):
    model = network("rnnt")
    full = save_model(tmp_path / "full", model).stat().st_size
    half = save_model(tmp_path / "half", model, dtype=torch.float16).stat().st_size
    loaded = load_checkpoint(tmp_path / "half").model
    assert half < 0.6 * full
    assert loaded.output.weight.dtype == torch.float32
    assert torch.allclose(loaded.output.weight, model.output.weight, atol=1e-3)


def test_each_kind_of_damage_is_named(tmp_path):
    file = save_model(tmp_path, network("rnnt"))
    whole = file.read_bytes()
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds a 'rnnt', but a 'lm' is needed"):
        load_checkpoint(file, expect="lm")

    for length in (0, 4, 100, len(whole) - 1):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            load_checkpoint(cut)

    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(2)}, foreign)
    with pytest.raises(CheckpointError, match="of another program"):
        load_checkpoint(foreign)

    pickled = tmp_path / "model.pt"
    torch.save({"x": torch.zeros(2)}, pickled)
    with pytest.raises(CheckpointError, match="is a pickle"):
        load_checkpoint(pickled)

    weights, header = read_tensors(file)
    bad = tmp_path / "bad.safetensors"
    write_tensors(bad, {**weights, "output.bias": torch.zeros(3)}, header)
    with pytest.raises(CheckpointError, match=r"output.bias has shape \(3,\), its description needs \(20,\)"):
        load_checkpoint(bad)
    write_tensors(bad, {k: v for k, v in weights.items() if k != "output.bias"}, header)
    with pytest.raises(CheckpointError, match=r"lacks 'output.bias'"):
        load_checkpoint(bad)
    write_tensors(bad, {**weights, "output.more": torch.zeros(3)}, header)
    with pytest.raises(CheckpointError, match=r"has 'output.more', which the model does not"):
        load_checkpoint(bad)
    about = json.loads(header["ilme"])
    write_tensors(bad, weights, {"ilme": json.dumps({**about, "version": 99})})
    with pytest.raises(CheckpointError, match="format version 99"):
        load_checkpoint(bad)
    write_tensors(bad, weights, {"ilme": json.dumps({**about, "config": {"bogus": 1}})})
    with pytest.raises(CheckpointError, match="no field 'bogus'"):
        load_checkpoint(bad)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x.bin"
    write_atomically(file, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*untouched"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomically(tmp_path / "whole", b"x")
    assert (tmp_path / "whole").stat().st_mode == plain.stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain", "whole"]


def test_loading_draws_no_random_numbers(tmp_path):
    save_model(tmp_path, network("lm"))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load_checkpoint(tmp_path)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("name", "most"),
    [("rate", 768_000), ("mel_bins", 1000), ("window", 10), ("hop", 10), ("stack", 100), ("stride", 100)],
)
def test_a_frontend_is_taken_up_to_what_can_be_heard(tmp_path, name, most):
    save_model(tmp_path, network("rnnt"), frontend=replace(FrontendConfig(), **{name: most}))
    assert getattr(load_checkpoint(tmp_path).frontend, name) == most
    save_model(tmp_path, network("rnnt"), frontend=replace(FrontendConfig(), **{name: most + 1}))
    with pytest.raises(CheckpointError, match=f"{name}={most + 1} of the frontend must be at most {most}"):
        load_checkpoint(tmp_path)


def test_first_weights_are_left_out_where_a_file_has_them():
    """Drawing, and sums with what was drawn, leave a tensor as it is; other functions run."""
    x = torch.arange(4.0)
    with _NothingDrawn():
        for drawn in (torch.nn.init.normal_(x), torch.nn.init.uniform_(x, -1, 1), x.normal_(), x.add_(1.0), x.mul(2.0)):
            assert drawn is x
        assert torch.eye(3, 2).shape == (3, 2)
        assert x.sum() == 6.0 and torch.equal(x.flip(0), torch.tensor([3.0, 2.0, 1.0, 0.0]))
    assert torch.equal(x, torch.arange(4.0))
