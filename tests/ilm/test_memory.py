"""The memory that stands for silence: how long it is."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from ilme.ilm.calibration import Calibration
from ilme.ilm.memory import SILENCE, estimators


@pytest.mark.parametrize(
    ("window", "fixed", "seconds"), [(30.0, True, 30.0), (30.0, False, SILENCE), (2.0, False, 2.0)]
)
def test_silence_is_a_full_window_or_three_seconds(window: float, fixed: bool, seconds: float) -> None:
    heard: list[np.ndarray] = []

    def features(waves: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        heard.extend(waves)
        return torch.zeros(1, 4, 2), torch.tensor([4])

    model = types.SimpleNamespace(
        window=window, fixed_length=fixed, rate=8000, device=torch.device("cpu"), features=features,
        encode=lambda x, lengths: ("memory", lengths), without_audio=lambda: None,
    )  # fmt: skip
    made = estimators(model)["silence"].make(model, Calibration())
    assert made.how == "silence" and made.memory[0] == "memory"
    (wave,) = heard
    assert wave.shape == (int(seconds * 8000),) and wave.dtype == np.float32 and not wave.any()
