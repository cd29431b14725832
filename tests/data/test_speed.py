"""Speed and band of long recordings."""

from __future__ import annotations

import math

import pytest
import torch

from ilme.data import speed
from ilme.data.speed import change_speed, low_pass


def tone(hertz: float, samples: int = 16000) -> torch.Tensor:
    return (10000 * torch.sin(2 * math.pi * hertz * torch.arange(samples) / 16000)).to(torch.int16)


@pytest.mark.parametrize("factor", [0.9, 1.1, 0.8, 1.25])
def test_a_tone_becomes_the_tone_of_that_speed(factor: float) -> None:
    changed, ratio = change_speed(tone(500), factor)
    assert float(ratio) == pytest.approx(1 / factor)
    assert len(changed) == math.ceil(16000 * ratio)
    expected = tone(500 * factor, len(changed))
    inside = slice(200, -200)
    assert (changed[inside].int() - expected[inside].int()).abs().max() <= 60


def test_blocks_leave_no_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = torch.randint(-8000, 8000, (9001,), dtype=torch.int16, generator=torch.Generator().manual_seed(0))
    whole, _ = change_speed(samples, 1.1)
    monkeypatch.setattr(speed, "_BLOCK", 1000)
    pieces, _ = change_speed(samples, 1.1)
    assert len(whole) == len(pieces)
    assert (whole.int() - pieces.int()).abs().max() <= 1


def test_the_same_speed_changes_nothing() -> None:
    samples = tone(300)
    assert torch.equal(change_speed(samples, 1.0)[0], samples)


def test_what_a_telephone_lacks_is_gone() -> None:
    kept, lost = low_pass(tone(1000), 0.5), low_pass(tone(6000), 0.5)
    assert (kept[200:-200].int() - tone(1000)[200:-200].int()).abs().max() <= 60
    assert lost[200:-200].abs().max() <= 60


def test_speeding_up_folds_nothing_back() -> None:
    changed, _ = change_speed(tone(7800), 1.25)  # would be 9750 Hz, above half the rate
    assert changed[200:-200].abs().max() <= 200
