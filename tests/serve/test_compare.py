"""What the page is told of a recording: scores that rank as the search does, and shares that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.fusion import FusionWeights
from ilme.recogniser.domain import load_domain
from ilme.recogniser.windows import Window
from ilme.search.hypothesis import Scores
from ilme.serve.compare import Compare, why
from ilme.serve.tasks import Shelf
from ilme.workflows.transcribe import Job
from tests.checkpoints import noise


def test_candidates_rank_as_the_search_does(models: Path) -> None:
    audio = noise(0.95, 3)
    found = Compare("sea", Job(str(models / "sea")), [Window(2.0, 2.95, audio)]).run(Shelf(voice_activity=False))
    recogniser = load_domain(models / "sea")
    (fused,), (plain,) = recogniser.nbest([audio]), recogniser.without_fusion().nbest([audio])
    (window,) = found["windows"]
    texts = [c["text"] for c in window["candidates"]]
    assert texts[0] == fused[0].text and window["baseline"] == plain[0].text
    assert set(texts) == {h.text for h in (*fused, *plain)} and len(set(texts)) == len(texts)
    weights = FusionWeights(**found["weights"])
    scores = {c["text"]: Scores(**{k: v for k, v in c.items() if k != "text"}) for c in window["candidates"]}
    for h in fused:
        assert scores[h.text].fused(weights) == pytest.approx(h.score, abs=0.02)
    assert [w["word"] for w in window["words"]] == fused[0].text.split()
    assert all(2.0 <= w["start"] <= w["end"] <= 2.95 and 0 < w["confidence"] <= 1 for w in window["words"])


def test_words_shares_are_those_of_their_labels(models: Path) -> None:
    recogniser = load_domain(models / "sea")
    encoded = recogniser.encode([noise(0.95, 3)])
    ((best, *_),) = recogniser.search(encoded)
    found = why(recogniser, encoded, best)
    assert sum(w["lm"] for w in found) == pytest.approx(best.scores.lm, abs=0.05 * len(found))
    assert all(w["asr"] <= 0 for w in found)


def test_silence_has_no_candidates(models: Path) -> None:
    window = Window(0.0, 1.0, 0 * noise(1.0))
    found = Compare("sea", Job(str(models / "sea")), [window]).run(Shelf(voice_activity=False))
    assert found["windows"] == [{"start": 0.0, "end": 1.0, "baseline": "", "candidates": [], "words": []}]
