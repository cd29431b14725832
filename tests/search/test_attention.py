"""The label-synchronous search against brute force, and against itself in other arrangements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.models.aed import AED, AEDConfig
from ilme.models.encoder import EncoderConfig
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.testing import numbered_tokens
from tests import oracle
from tests.search.test_transducer import language_model

SMALL = AEDConfig(
    encoder=EncoderConfig(features=5, hidden=4, layers=1, bidirectional=True, projection=6),
    decoder_hidden=6, decoder_layers=2, attention=5, filters=2, width=3,
)  # fmt: skip


def decoder(seed, units=3, dtype=torch.float64, filters=2):
    torch.manual_seed(seed)
    config = AEDConfig(**{**SMALL.__dict__, "filters": filters})
    model = AED(config, numbered_tokens(units, "attention")).to(dtype).eval()
    with torch.no_grad():
        model.output.weight.mul_(4)
        model.embedding.weight.mul_(2)
    return model


def features(seed, frames, batch=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, SMALL.encoder.features, generator=generator, dtype=dtype) * 2


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "frames": st.integers(1, 6),
        "units": st.integers(2, 4),
        "longest": st.integers(1, 3),
        "lm": st.sampled_from([0.0, 0.3, 0.9]),
        "mu": st.sampled_from([0.0, 0.2, 0.7]),
        "length": st.sampled_from([0.0, 0.5, -0.3]),
        "subtracted": st.sampled_from(["nothing", "internal", "source"]),
        "alpha": st.sampled_from([0.0, 0.6, 1.0]),
        "filters": st.sampled_from([0, 2]),
    }
)


@settings(max_examples=150, deadline=None)
@given(cases)
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_finds(case):
    model = decoder(case["seed"], case["units"], filters=case["filters"])
    lm = language_model(case["seed"], case["units"])
    subtracted = {
        "nothing": lambda: None,
        "internal": lambda: AttentionInternalLM(model),
        "source": lambda: language_model(case["seed"] + 7, case["units"]),
    }[case["subtracted"]]()
    weights = FusionWeights(case["lm"], case["mu"] if subtracted else 0.0, case["length"])
    memory = model.encode(features(case["seed"], case["frames"]), torch.tensor([case["frames"]]))
    options = AttentionOptions(
        beam=130, max_length=case["longest"], length_normalisation=case["alpha"], stop_margin=float("inf")
    )
    (found,) = AttentionSearch(model, Fusion(lm, subtracted, weights), options)(memory)

    expected = oracle.attention_best(
        model, memory, case["longest"], lm if weights.lm else None, subtracted if weights.subtracted else None,
        weights, lambda score, n: score / (n + 1) ** case["alpha"],
    )  # fmt: skip
    assert len(found) == len(expected)
    by_labels = {labels: (score, asr) for score, labels, asr in expected}
    for hypothesis, (best, _, _) in zip(found, expected, strict=True):
        score, asr = by_labels[hypothesis.tokens]
        assert hypothesis.score == pytest.approx(best, abs=1e-9)
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.scores.asr == pytest.approx(asr, abs=1e-9)
