"""Nemotron: upstream's logits on tiny random weights at several look-aheads, and the contract."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("samples", [15_000, 16_160, 20_481, 700])
@torch.no_grad()
def test_pieces_give_what_the_whole_gives(folder, lookahead, samples):
    model = load_model(folder[0], lookahead=lookahead)
    wave = np.random.default_rng(samples).standard_normal(samples).astype(np.float32) * 0.1
    whole, lengths = model.encode(*model.features([wave]))
    stream = model.stream()
    pieces = [stream.feed(piece) for piece in np.array_split(wave, 11)]
    assert samples < 2000 or sum(p.shape[1] for p in pieces) > 0
    found = torch.cat([*pieces, stream.finish()], 1)
    assert found.shape[1] == lengths.item()
    torch.testing.assert_close(found, whole[:, : lengths.item()], rtol=0, atol=1e-4)
