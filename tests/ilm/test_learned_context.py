"""How many transcripts the learned context is tried on and not learned from."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from ilme.errors import BadInputError
from ilme.ilm import learned_context as module
from ilme.ilm.calibration import Calibration
from tests.adapters.tiny import tiny_whisper


@pytest.mark.parametrize(("count", "aside"), [(2, 1), (19, 1), (20, 2), (109, 10), (110, 11)])
def test_a_tenth_of_the_transcripts_is_kept_aside_and_at_least_one(
    count: int, aside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = tiny_whisper(), []

    def fit(model: Any, context: Any, sequences: list[list[int]], kept: list[list[int]], *_: Any) -> dict[str, Any]:
        sizes.append((len(sequences), len(kept)))
        assert sorted(sequences + kept) == [[3 + i] for i in range(count)]
        return {key: value.detach().clone() for key, value in context.state_dict().items()}

    monkeypatch.setattr(module, "_fit", fit)
    start = types.SimpleNamespace(tensors={"vectors": torch.zeros(2, 16)})
    monkeypatch.setattr(module, "mean_context", lambda model, _: start)
    module.learn_context(model, Calibration(labels=[[3 + i] for i in range(count)]))
    assert sizes == [(count - aside, aside)]


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"rank": -1}])
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="must be positive, rank not negative"):
        module.LearnedContextOptions(**wrong)
    module.LearnedContextOptions(epochs=1, batch=1, rank=0)  # the least that can be
