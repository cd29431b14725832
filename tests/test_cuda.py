"""On a GPU: the searches give what they give on CPU."""

from __future__ import annotations

import pytest
import torch

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.ilm.learned_vector import LearnedVectorOptions, learn_vector
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import tiny
from tests.search.test_attention import decoder, features
from tests.search.test_transducer import acoustics, language_model, transducer

pytestmark = pytest.mark.cuda

METHODS = {
    "BS": FusionWeights(),
    "SF": FusionWeights(0.4),
    "DR": FusionWeights(0.4, 0.3),
    "ILME": FusionWeights(0.4, 0.3, 0.1),
}


def agree(found, expected, tolerance=1e-8):
    for a, b in zip(found, expected, strict=True):
        assert [h.tokens for h in a[:3]] == [h.tokens for h in b[:3]]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=tolerance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prediction", ["lstm", "stateless"])
def test_the_transducer_search(method, prediction):
    lengths, f = torch.tensor([21, 7, 24]), acoustics(1, 24, batch=3)
    results = []
    for device in ("cpu", "cuda"):
        model = transducer(1, units=9, prediction=prediction).to(device)
        lm, source = language_model(1, 9).to(device), language_model(8, 9).to(device)
        subtracted = TransducerInternalLM(model) if method == "ILME" else source
        fusion = Fusion(lm, subtracted, METHODS[method])
        search = TransducerSearch(model, fusion, TransducerOptions(beam=6, lm_eos=True))
        assert search.records == (device == "cuda")
        for records in {False, search.records}:
            search.records = records
            results += [search(f.to(device), lengths.to(device)) for _ in range(2)]
    assert len(results) == 6
    for found in results[1:]:
        agree(found, results[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_attention_search(method):
    x, lengths = features(1, 9, batch=3), torch.tensor([9, 6, 8])
    results = []
    for device in ("cpu", "cuda"):
        model = decoder(1, units=9).to(device)
        lm, source = language_model(1, 9).to(device), language_model(8, 9).to(device)
        subtracted = AttentionInternalLM(model) if method == "ILME" else source
        options = AttentionOptions(beam=5, max_length=20, max_repeats=2, end_margin=4.0)
        search = AttentionSearch(model, Fusion(lm, subtracted, METHODS[method]), options)
        with torch.no_grad():
            results.append(search(model.encode(x.to(device), lengths.to(device))))
    agree(results[1], results[0])


def test_bfloat16():
    model = transducer(1, units=9, dtype=torch.bfloat16).cuda()
    lm = language_model(1, 9, torch.bfloat16).cuda()
    fusion = Fusion(lm, TransducerInternalLM(model), FusionWeights(0.3, 0.2))
    found = TransducerSearch(model, fusion)(acoustics(1, 9).bfloat16().cuda(), torch.tensor([9]).cuda())
    assert found[0] and all(torch.isfinite(torch.tensor(h.score)) for h in found[0])


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_a_learned_internal_lm(kind):
    text = [[2, 3, 4, 5, 6], [2, 3, 4, 7], [5, 6, 2, 3, 4], [7, 2, 3]] * 6
    options = LearnedVectorOptions(epochs=2, batch=8)
    here, there = (learn_vector(tiny(kind).double().to(device), text, options) for device in ("cpu", "cuda"))
    assert there.vector.is_cuda and there.scale == pytest.approx(here.scale, abs=1e-6)
    assert torch.allclose(there.vector.cpu(), here.vector, atol=1e-6)
