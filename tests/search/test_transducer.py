"""The transducer search against brute force, and against itself in other arrangements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.models.rnnt import RNNT, PRESETS, RNNTConfig
from ilme.models.encoder import EncoderConfig
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import numbered_tokens
from tests import oracle

SMALL = RNNTConfig(
    encoder=EncoderConfig(features=5, hidden=6, layers=1),
    embedding=4, prediction_hidden=6, prediction_layers=2, projection=5, joint=6,
)  # fmt: skip


def transducer(seed, units=3, prediction="lstm", dtype=torch.float64, spread=3.0):
    torch.manual_seed(seed)
    config = RNNTConfig(**{**SMALL.__dict__, "prediction": prediction})
    model = RNNT(config, numbered_tokens(units, "transducer")).to(dtype).eval()
    with torch.no_grad():
        model.output.weight.mul_(spread)
    return model


def language_model(seed, units=3, dtype=torch.float64):
    torch.manual_seed(1000 + seed)
    lm = LSTMLM(LSTMLMConfig(embedding=4, hidden=5, layers=1), numbered_tokens(units, "attention")).to(dtype).eval()
    with torch.no_grad():
        lm.output.bias.normal_()
    return lm


def acoustics(seed, frames, batch=1, dtype=torch.float64):
    return torch.randn(batch, frames, SMALL.joint, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2


def subtracted_scorer(name, model, seed, units):
    return {
        "nothing": lambda: None,
        "internal": lambda: TransducerInternalLM(model),
        "source": lambda: language_model(seed + 7, units),
    }[name]()


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "frames": st.integers(1, 3),
        "units": st.integers(2, 3),
        "most": st.integers(1, 2),
        "prediction": st.sampled_from(["lstm", "stateless"]),
        "lm": st.sampled_from([0.0, 0.3, 0.9]),
        "mu": st.sampled_from([0.0, 0.2, 0.7]),
        "length": st.sampled_from([0.0, 0.5, -0.3]),
        "subtracted": st.sampled_from(["nothing", "internal", "source"]),
        "end": st.booleans(),
        "blank_aware": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(cases)
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(case):
    model = transducer(case["seed"], case["units"], case["prediction"])
    lm = language_model(case["seed"], case["units"])
    subtracted = subtracted_scorer(case["subtracted"], model, case["seed"], case["units"])
    weights = FusionWeights(case["lm"], case["mu"] if subtracted else 0.0, case["length"])
    f = acoustics(case["seed"], case["frames"])
    options = TransducerOptions(
        beam=130, max_symbols=case["most"], lm_eos=case["end"], blank_aware=case["blank_aware"]
    )
    search = TransducerSearch(model, Fusion(lm, subtracted, weights), options)
    (found,) = search(f, torch.tensor([case["frames"]]))

    expected = oracle.transducer_best(
        model, f[0], lm if weights.lm else None, subtracted if weights.subtracted else None, weights,
        case["most"], case["end"], case["blank_aware"],
    )  # fmt: skip
    assert len(found) == len(expected)
    for hypothesis, (score, _, _) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
    by_labels = {labels: (score, asr) for score, labels, asr in expected}
    for hypothesis in found:
        score, asr = by_labels[hypothesis.tokens]
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.scores.asr == pytest.approx(asr, abs=1e-9)
        assert len(hypothesis.times) == len(hypothesis.tokens)
        assert list(hypothesis.times) == sorted(hypothesis.times)
