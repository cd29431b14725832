"""Networks in 8 bits: close to what they were, the same each time, without what only training needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ilme import models
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.int8 import is_int8, to_int8
from ilme.runtime.tensors import read_header
from ilme.testing import numbered_tokens


@pytest.mark.parametrize("kind", ["rnnt", "aed", "lm"])
def test_there_and_back(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    config = models.preset(kind, "tiny")
    if kind == "aed":
        config = replace(config, ctc=True)
    model = models.build(kind, config, numbered_tokens(30, "transducer" if kind == "rnnt" else "attention")).eval()
    plain = save_model(tmp_path / "plain", model)
    to_int8(plain, tmp_path / "small.safetensors")
    assert is_int8(read_header(tmp_path / "small.safetensors"))
    again = load_checkpoint(tmp_path / "small.safetensors", expect=kind).model
    assert (tmp_path / "small.safetensors").stat().st_size < 0.4 * plain.stat().st_size
    ours, theirs = model.state_dict(), again.state_dict()
    assert set(ours) - set(theirs) == ({"ctc.weight", "ctc.bias"} if kind == "aed" else set())
    for name, value in theirs.items():
        # Half a step of the row's scale for matrices, half precision for vectors.
        step = ours[name].flatten(1).abs().amax(1) / 127 if value.ndim > 1 else ours[name].abs() * 1e-3
        bound = step.view(-1, *[1] * (value.ndim - 1)) / 2 + 1e-6
        assert ((ours[name] - value).abs() <= bound * 1.001 + 1e-6).all(), name


def test_a_plain_checkpoint_is_not_taken_for_one_in_8_bits(tmp_path: Path) -> None:
    model = models.build("lm", models.preset("lm", "tiny"), numbered_tokens(9, "attention"))
    file = save_model(tmp_path, model)
    assert not is_int8(read_header(file))
    loaded = load_checkpoint(file).model.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())
