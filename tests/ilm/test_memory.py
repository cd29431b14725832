"""The memory that stands for silence, and memories that are made again from a file."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from ilme.errors import CheckpointError
from ilme.ilm.calibration import Calibration
from ilme.ilm.memory import SILENCE, estimators, restored


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


class Host:
    """A decoder whose memory is made of encoder states of two numbers."""

    device, encoder_width = torch.device("cpu"), 2

    def hidden(self, features: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, None]:
        return features, None

    def memory(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return hidden + 1

    def without_audio(self) -> str:
        return "nothing"


def test_a_memory_is_made_again_from_encoder_states() -> None:
    hidden = torch.arange(6.0).view(3, 2)
    for how in ("mean-encoder", "silence"):
        again = restored(Host(), how, {"hidden": hidden}, 1.0)
        assert again.how == how and torch.equal(again.memory, hidden[None] + 1)
        assert torch.equal(again.tensors["hidden"], hidden)
    assert restored(Host(), "zeroed", {}, 1.0).memory == "nothing"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "no encoder states"),
        ({"hidden": torch.zeros(3, 1)}, r"must be \(T, 2\).*\(3, 1\)"),
        ({"hidden": torch.zeros(0, 2)}, r"\(0, 2\)"),
        ({"hidden": torch.zeros(1, 3, 2)}, r"\(1, 3, 2\)"),
    ],
)
def test_encoder_states_of_another_model_are_refused(tensors: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        restored(Host(), "mean-encoder", tensors, 1.0)
