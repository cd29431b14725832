"""Files of internal LMs, of this version and of the one before."""

from __future__ import annotations

import json

import pytest
import torch

from ilme.errors import CheckpointError
from ilme.ilm.files import _SAMPLED, VERSION, fingerprint, load_internal_lm, save_internal_lm
from ilme.ilm.transducer import TransducerInternalLM
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.testing import tiny


@torch.no_grad()
def test_versions_that_are_known_are_read_and_others_named(tmp_path):
    model, file = tiny("rnnt"), tmp_path / "internal.safetensors"
    made = TransducerInternalLM(model, torch.linspace(-1, 1, model.start(1)[0].shape[1]), 1.5, "learned")
    save_internal_lm(file, made)
    tensors, header = read_tensors(file)
    (entry,) = (name for name, text in header.items() if "version" in text)
    for version in (1, VERSION):
        write_tensors(file, tensors, {entry: json.dumps(json.loads(header[entry]) | {"version": version})})
        assert torch.equal(load_internal_lm(file, model).start(1)[0], made.start(1)[0])
    for version in (0, VERSION + 1):
        write_tensors(file, tensors, {entry: json.dumps(json.loads(header[entry]) | {"version": version})})
        with pytest.raises(CheckpointError, match=f"has format version {version}, this program reads {VERSION}"):
            load_internal_lm(file, model)


def test_the_fingerprint_is_of_the_weight_matrices_alone():
    """Biases and other vectors are left out: files that were written before have no rows of them."""
    model = tiny("rnnt")
    matrices = [p for p in model.language_parameters().values() if p.ndim > 1]
    assert len(matrices) < len(model.language_parameters())
    found = fingerprint(model)
    assert found.shape == (len(matrices), _SAMPLED)
    assert torch.equal(found[:, 0], torch.stack([p.flatten()[0] for p in matrices]))
    assert torch.equal(found[:, -1], torch.stack([p.flatten()[-1] for p in matrices]))
