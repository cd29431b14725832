"""The recorded search against the plain one: the same lists, on a CUDA device or with interpreted kernels on a CPU.

python -m tests.search.recorded_check cpu|cuda [CASE …]         the former with TRITON_INTERPRET=1
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.recorded import RecordedStream
from ilme.search.transducer import TransducerOptions, TransducerSearch, TransducerStream
from tests.phrase_oracle import drawn_phrases
from tests.search.test_transducer import acoustics, language_model, transducer

ILME = FusionWeights(0.4, 0.3, 0.1)
CASES = {
    "no LM": {},
    "SF": {"weights": FusionWeights(0.4)},
    "ILME": {"weights": ILME},
    "float32": {"weights": ILME, "dtype": torch.float32},
    "a source LM": {"weights": ILME, "subtracted": "source"},
    "phrases, smoothed": {"weights": FusionWeights(0.4, 0.3, -0.2, background=0.2, phrases=0.8)},
    "no states": {"weights": ILME, "prediction": "stateless"},
    "HAT": {"weights": ILME, "hat": True},
    "blank-aware, with the end": {"weights": ILME, "options": {"blank_aware": True, "lm_eos": True}},
    "no repeats, few labels": {
        "weights": ILME,
        "options": {"max_repeats": 1, "repeat_span": 2},
        "limits": [3, 1, 0, 9],
    },
    "one label a frame": {"weights": ILME, "options": {"max_symbols": 1}},
    "a beam of one": {"weights": ILME, "options": {"beam": 1}},
    "a wide beam": {"weights": ILME, "options": {"beam": 37}, "frames": 4},
    "few units": {"weights": ILME, "units": 3},
    "many units": {"units": 70, "options": {"beam": 4}},
}


def small_search(dtype: torch.dtype, options: TransducerOptions) -> TransducerSearch:
    """A search with everything in it, on the CPU."""
    model = transducer(1, 9, dtype=dtype)
    weights = FusionWeights(0.4, 0.3, 0.1, phrases=0.8)
    phrases = drawn_phrases(1, model.tokens)[0]
    return TransducerSearch(
        model, Fusion(language_model(1, 9, dtype), TransducerInternalLM(model), weights, phrases=phrases), options
    )


def searched(search: TransducerSearch, stream: type[TransducerStream], f, lengths, limits=None, chunk=1000):
    found = stream(search, len(f), limits)
    for first in range(0, f.shape[1], chunk):
        part = f[:, first : first + chunk]
        found.feed(part, (lengths - first).clamp(0, part.shape[1]))
        assert len(found.partial()) == len(f)
    return found.finish()


def assert_same(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=tolerance)
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.times for h in a] == [h.times for h in b]
        for name in ("asr", "lm", "subtracted", "length", "phrases"):
            theirs = [getattr(h.scores, name) for h in b]
            assert [getattr(h.scores, name) for h in a] == pytest.approx(theirs, abs=tolerance)


def check(name: str, device: str, seed: int) -> None:
    case = {"units": 9, "prediction": "lstm", "hat": False, "dtype": torch.float64, "frames": 7, **CASES[name]}
    units, dtype, frames = case["units"], case["dtype"], case["frames"]
    model = transducer(seed, units, case["prediction"], dtype, hat=case["hat"]).to(device)
    lm = language_model(seed, units, dtype).to(device)
    internal = TransducerInternalLM(model)
    subtracted = language_model(seed + 7, units, dtype).to(device) if "subtracted" in case else internal
    phrases = drawn_phrases(seed, model.tokens)[0] if units >= 9 else None
    if phrases is not None:
        phrases._on = {key: x.to(device) for key, x in phrases._on.items()}
        phrases.device = torch.device(device)
    fusion = Fusion(lm, subtracted, case.get("weights", FusionWeights()), phrases=phrases)
    search = TransducerSearch(model, fusion, TransducerOptions(**{"beam": 4, **case.get("options", {})}))
    limits = torch.tensor(case["limits"], device=device) if "limits" in case else None
    f = acoustics(seed, frames, 4, dtype).to(device)
    lengths = torch.tensor([frames, frames // 3, 0, frames - 2], device=device)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    plain = searched(search, TransducerStream, f, lengths, limits)
    for chunk in (3,) if device == "cpu" else (1000, 1000, 3, 1000):  # what one has recorded serves the next
        found = searched(search, RecordedStream, f, lengths, limits, chunk)
        assert_same(found, plain, tolerance)
    fewer = searched(search, RecordedStream, f[1:], lengths[1:], None if limits is None else limits[1:])
    assert_same(fewer, plain[1:], tolerance)
    assert len(search.idle) == 1 and search.idle[0].B == 4
    if fusion.weights.lm:  # other weights, the same recordings
        weights = replace(fusion.weights, lm=fusion.weights.lm + 0.3, length=0.7)
        other = TransducerSearch(model, replace(fusion, weights=weights), search.options, search.idle)
        machine = search.idle[0]
        found = searched(other, RecordedStream, f, lengths, limits)
        assert_same(found, searched(other, TransducerStream, f, lengths, limits), tolerance)
        assert other.idle == [machine]
    if device == "cuda":
        assert search.records and search.idle[0].executor.graphs
        assert isinstance(search.stream(4), RecordedStream)


if __name__ == "__main__":
    torch.set_num_threads(1)
    only = sys.argv[2:] or CASES
    for name in only:
        for seed in range(2 if sys.argv[1] == "cuda" else 1):
            check(name, sys.argv[1], seed)
        print(name, flush=True)
    print("searches agree")
