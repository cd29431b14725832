"""Nemotron: upstream's logits on tiny random weights at several look-aheads, and the contract."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.errors import BadInputError
from ilme.recogniser.loading import load_model
from ilme.testing import check_transducer
from tests.adapters import frame_models
from tests.adapters.test_parakeet import check_joint, upstream_inputs
from tests.adapters.tiny import waves


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("nemotron")
    return made, frame_models.nemotron(made)


@pytest.mark.parametrize("lookahead", [-1, 0, 3])
def test_joint_logits_are_upstreams(folder, lookahead):
    audio = waves(3)
    model = load_model(folder[0], lookahead=lookahead)
    inputs = upstream_inputs("nemotron_asr_streaming", audio)
    check_joint(model, folder[1], inputs, audio, num_lookahead_tokens=1 if lookahead < 0 else lookahead)


def test_the_contract(folder):
    model = load_model(folder[0])
    check_transducer(model, *model.features(waves(3)), labels=[5, 9])


def test_options(folder):
    with pytest.raises(BadInputError, match="Nemotron takes no language; it takes lookahead"):
        load_model(folder[0], language="de")
    with pytest.raises(BadInputError, match="lookahead must be a number of frames"):
        load_model(folder[0], lookahead=-5)
    features, lengths = load_model(folder[0]).features(waves(1))
    near, far = (load_model(folder[0], lookahead=n).encode(features, lengths)[0] for n in (0, 3))
    assert near.shape == far.shape and not torch.allclose(near, far)
