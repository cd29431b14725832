"""The made-up model of benchmarks/tuning.py --toy keeps a transducer's contract, and fusion helps it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.testing import check_transducer
from ilme.tuning.tuner import TuningOptions, tune

SOURCE = Path(__file__).parents[2] / "benchmarks" / "toy_transducer.py"


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_transducer", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toy_transducer"] = module
    spec.loader.exec_module(module)
    return module


def test_keeps_the_contract_and_its_internal_lm_is_the_source(toy: ModuleType) -> None:
    recogniser, utterances = toy.make_toy(0, 3)
    features, lengths = recogniser.features([u.samples(recogniser.rate) for u in utterances])
    check_transducer(recogniser.model, features, lengths, labels=[3, 7])
    rows, _ = recogniser.subtracted.score(torch.tensor([5]), torch.tensor([0]))
    source = recogniser.model.language[5].clone()
    source[0] = -torch.inf
    assert torch.allclose(rows[0, 1:], source.log_softmax(0)[1:], atol=1e-5)
    again = toy.make_toy(0, 3)[1]
    assert [u.text for u in again] == [u.text for u in utterances]


def test_fusion_helps_in_a_few_decodes(toy: ModuleType) -> None:
    recogniser, utterances = toy.make_toy(1, 24)
    decoder = SearchDecoder(recogniser, utterances, options=DecodingOptions(batch_size=24))
    options = TuningOptions(beam=4, replicates=0, restarts=1, grid=3)
    result = tune(decoder, {u.id: u.text for u in utterances}, options=options)
    assert result.baseline is not None and result.decodes <= 5
    assert result.dev.rate < 0.8 * result.baseline.rate
