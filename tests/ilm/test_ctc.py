"""The internal LMs of CTC models: what they say, that they do not hear, and their files."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import CheckpointError
from ilme.ilm import Calibration, internal_lm
from ilme.ilm.files import load_internal_lm, save_internal_lm
from tests.search.test_ctc import Frames, heard

BLANK = 0


def model(seed=0, units=6):
    made = Frames(seed, units)
    made.kind = "frames"
    return made


@torch.no_grad()
def test_without_acoustics_the_bias_is_left():
    host = model()
    scorer = internal_lm(host)
    rows, state = scorer.start(2)
    assert scorer.how == "removed" and rows.shape == (2, 6) and rows[0, BLANK] == -torch.inf
    torch.testing.assert_close(rows[0, 1:], host.bias[1:].log_softmax(0))
    torch.testing.assert_close(scorer.score(torch.tensor([3, 4]), state)[0], rows)
    assert not scorer.finish(rows).any()


@torch.no_grad()
def test_the_frame_prior_is_the_mean_posterior_without_blank():
    host = model(1)
    speech = [heard(0, 7)[0], heard(1, 3)[0]]
    scorer = internal_lm(host, "frame-prior", calibration=Calibration(speech, [[], []]))
    mean = torch.cat([host.emit(h).softmax(-1) for h in speech]).mean(0)[1:]
    torch.testing.assert_close(scorer.start(1)[0][0, 1:].exp().double(), mean / mean.sum(), rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_label_that_speech_never_had_is_not_worth_any_price():
    host = model(2)
    host.bias[4] = -1e6
    scorer = internal_lm(host, "frame-prior", calibration=Calibration([heard(0, 7)[0]], [[]]))
    assert -30 < scorer.start(1)[0][0, 4] < -20


@pytest.mark.parametrize("how", ["removed", "frame-prior"])
@torch.no_grad()
def test_files(how, tmp_path):
    host = model(3)
    scorer = internal_lm(host, how, calibration=Calibration([heard(0, 9)[0]], [[]]))
    save_internal_lm(tmp_path / "internal.safetensors", scorer)
    again = load_internal_lm(tmp_path / "internal.safetensors", host)
    assert again.how == how
    torch.testing.assert_close(again.start(1)[0], scorer.start(1)[0].float(), check_dtype=False)
    with pytest.raises(CheckpointError):
        load_internal_lm(tmp_path / "internal.safetensors", model(3, units=7))
